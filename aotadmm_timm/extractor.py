"""Images in, feature vectors out: one model with its own preprocessing, for notebooks and for whole folders alike."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import timm
import torch
from PIL import Image
from timm.layers import global_pool_nlc
from torch import Tensor, nn

from aotadmm_timm import __version__
from aotadmm_timm.data.decode import read_image, to_rgb
from aotadmm_timm.data.preprocessing import in_channels, preprocessing
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import DEFAULT_MODEL, POOLS
from aotadmm_timm.pretrained import open_model, state_digest

Pictures = Sequence[Image.Image | str | Path]


class FeatureExtractor:
    """Features of PIL images or image files.

        extract = FeatureExtractor("RUN/encoder")
        features = extract(["a.jpg", "b.png"])        # (2, d) float32

    Args:
        model: registered model name, run or model folder, or `hf-hub:ORG/NAME`.
        layers: blocks whose output to take, in this order (negative ones count from the last); by default the model's
            own features. Each gets the model's final norm, so the last one equals the model's own features.
        pool: "token" (the class token), "avg" (mean of the patch tokens), "none" (every token, prefix tokens first);
            by default the model's own pooling.
        batch_size: images per forward pass.
        device: torch device; by default the GPU if there is one.
        random_init: allow a model without weights.
    Attributes:
        shape: of the features of one image: (d,), with L > 1 layers (L, d), with pool "none" (T, d) or (L, T, d).
        input_size: (H, W) that the model sees.
    Raises: UserError in one line for a model, layer or pooling that does not exist.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        layers: Sequence[int] = (),
        pool: str | None = None,
        batch_size: int = 64,
        device: str | torch.device | None = None,
        random_init: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be positive, got {batch_size}")
        network, self.origin = open_model(model, num_classes=0, random_init=random_init)
        self.batch_size = batch_size
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = network.to(self.device)
        self.layers, self.pool = _resolve(network, self.origin.name, layers, pool)
        self.transform = preprocessing(network)
        self.channels = in_channels(network)
        if self.channels not in (1, 3):
            raise UserError(f"{self.origin.name} takes {self.channels} channels; images have 1 or 3")
        blank = self.prepare(Image.new("RGB", (64, 64)))
        self.input_size = (blank.shape[1], blank.shape[2])
        self.shape = tuple(self.embed(blank[None]).shape[1:])
        self._warned = False

    def __call__(self, images: Pictures | Image.Image | str | Path) -> np.ndarray:
        """Features (N, *shape), float32, in the order of `images`.

        Raises: UnreadableImage naming a file that does not decode.
        """
        if isinstance(images, Image.Image | str | Path):
            images = [images]
        features = np.empty((len(images), *self.shape), np.float32)
        for start in range(0, len(images), self.batch_size):
            batch = [self._read(image) for image in images[start : start + self.batch_size]]
            features[start : start + len(batch)] = self.embed(torch.stack(batch)).numpy()
        return features

    def prepare(self, image: Image.Image) -> Tensor:
        """The model's input (C, H, W) for an RGB picture."""
        return self.transform(image.convert("L") if self.channels == 1 else image)

    @torch.inference_mode()
    def embed(self, batch: Tensor) -> Tensor:
        """Features (B, *shape) in float32 on the CPU, of prepared images (B, C, H, W)."""
        batch = batch.to(self.device, non_blocking=True)
        if not self.layers:
            return self.model(batch).float().cpu()
        model: Any = self.model
        ascending = sorted(set(self.layers))  # the order in which timm returns them, whatever the order asked for
        maps = model.forward_intermediates(
            batch,
            indices=ascending,
            return_prefix_tokens=bool(model.num_prefix_tokens),
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        pooled = {}
        for layer, tokens in zip(ascending, maps, strict=True):
            if model.num_prefix_tokens:
                patches, prefix = tokens
                tokens = torch.cat([prefix, patches], dim=1)
            if self.pool != "none":
                include_prefix = getattr(model, "pool_include_prefix", False)
                tokens = global_pool_nlc(tokens, self.pool, model.num_prefix_tokens, include_prefix)
                tokens = model.fc_norm(tokens)
            pooled[layer] = tokens
        chosen = [pooled[layer] for layer in self.layers]
        features = chosen[0] if len(chosen) == 1 else torch.stack(chosen, dim=1)
        return features.float().cpu()

    def warn_if_large(self, width: int, height: int) -> None:
        """Say once that images hold much more detail than the model sees."""
        if not self._warned and min(width, height) > 4 * max(self.input_size):
            self._warned = True
            warnings.warn(
                f"images of {width}x{height} pixels are more than four times larger than the {self.input_size[1]}x"
                f"{self.input_size[0]} that {self.origin.name} sees; fine detail is lost",
                stacklevel=3,
            )

    def describe(self) -> dict[str, Any]:
        """What the features depend on: model, weights, taps, preprocessing, versions; plain JSON values."""
        return {
            "model": self.origin.name,
            "revision": self.origin.revision,
            "weights_sha256": state_digest(self.model.state_dict()),
            "layers": list(self.layers),
            "pool": self.pool,
            "shape": list(self.shape),
            "preprocessing": " ".join(str(self.transform).split()),
            "versions": {
                "aotadmm_timm": __version__,
                "timm": timm.__version__,
                "torch": torch.__version__,
                "pillow": PIL.__version__,
            },
        }

    def _read(self, source: Image.Image | str | Path) -> Tensor:
        if isinstance(source, Image.Image):
            image = to_rgb(source)
        elif isinstance(source, str | Path):
            image = read_image(source)
        else:
            raise UserError(f"expected a PIL image or a path, got {type(source).__name__}")
        self.warn_if_large(*image.size)
        return self.prepare(image)


def centered_cosine(queries: np.ndarray, gallery: np.ndarray, mean: np.ndarray | None = None) -> np.ndarray:
    """Cosine similarities (Q, N) of queries (Q, d) to a gallery (N, d), both minus the gallery's mean (or `mean`).

    Pooled features share a common part, a large one where they are non-negative (pooled V of AoT-ADMM), so that plain
    cosines are close to 1; the differences between images lie around the mean.
    """
    mean = gallery.mean(axis=0, dtype=np.float32) if mean is None else mean
    return finish(queries, mean, normalize=True) @ finish(gallery, mean, normalize=True).T


def finish(features: np.ndarray, mean: np.ndarray | None, *, normalize: bool) -> np.ndarray:
    """Features minus `mean`, then scaled to length 1 along the last axis (a zero vector stays zero), in float32."""
    features = features.astype(np.float32, copy=False)  # squares of half precision overflow at 256
    if mean is not None:
        features = features - mean
    if normalize:
        features = features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    return features


def _resolve(model: nn.Module, name: str, layers: Sequence[int], pool: str | None) -> tuple[tuple[int, ...], str]:
    """Absolute layer numbers in the given order, and the pooling; () and "model" for the model's own features."""
    if pool is not None and pool not in POOLS:
        raise UserError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
    if not layers and pool is None:
        return (), "model"
    blocks = getattr(model, "blocks", None)
    if blocks is None or not hasattr(model, "fc_norm") or not hasattr(model, "num_prefix_tokens"):
        raise UserError(f"{name}: layers and pool need a vision transformer of timm's kind")
    depth = len(blocks)
    for layer in layers:
        if not -depth <= layer < depth:
            raise UserError(f"{name} has layers 0 to {depth - 1}; there is no layer {layer}")
    pool = pool or getattr(model, "global_pool", None)
    if pool not in POOLS:
        raise UserError(f"{name}: its own pooling is {pool!r}; choose one of {', '.join(POOLS)}")
    # prefix tokens may be registers alone; timm's models keep the class token as `cls_token`
    if pool == "token" and not (model.num_prefix_tokens and getattr(model, "cls_token", model) is not None):
        raise UserError(f"{name} has no class token; pool by 'avg' or 'none'")
    return tuple(layer % depth for layer in layers or (-1,)), pool
