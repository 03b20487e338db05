"""Images as a model wants to see them: its own size, interpolation, mean and std."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch.utils.data import DataLoader, Dataset

from .datasets import LabelledImages
from .decode import UnreadableImage, read_image, to_rgb

logger = logging.getLogger(__name__)

Pictures = LabelledImages | Sequence[Image.Image | str | Path]


def in_channels(model: Any) -> int:
    """Channels of a model's images: what it says itself, else what its first convolution takes, else 3."""
    if own := getattr(model, "in_chans", 0):
        return int(own)
    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv")
    if first:  # one name, or several of which each sees the images
        conv = model.get_submodule(first if isinstance(first, str) else first[0])
        return int(getattr(conv, "in_channels", 3))
    return int(resolve_data_config(model=model)["input_size"][0])


def data_config(model: torch.nn.Module) -> dict[str, Any]:
    """timm's data configuration of a model, with size, mean and std for the channels that it really has."""
    config: dict[str, Any] = resolve_data_config(model=model)
    channels = in_channels(model)
    if len(config["mean"]) != channels:  # a configuration for RGB, a model for another number of channels
        config["mean"], config["std"] = (((sum(v) / len(v)),) * channels for v in (config["mean"], config["std"]))
    config["input_size"] = (channels, *config["input_size"][1:])
    return config


def preprocessing(
    model: torch.nn.Module, *, img_size: int | tuple[int, int] | None = None
) -> Callable[[Image.Image], torch.Tensor]:
    """timm's evaluation transform of a model: RGB image -> float tensor (C, H, W).

    The size is the model's present one (after `set_input_size` or `img_size=`), not its pretrained configuration's.
    """
    config = data_config(model)
    size = img_size or getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        config["input_size"] = (config["input_size"][0], height, width)
        if max(height, width) <= 64:  # small images are whole pictures: no border is cut off
            config["crop_pct"] = 1.0
    return create_transform(**config, is_training=False)


class _Transformed(Dataset):
    def __init__(self, images: Pictures, transform: Callable, indices: np.ndarray, in_chans: int) -> None:
        self.images, self.transform, self.indices, self.in_chans = images, transform, indices, in_chans

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        index = int(self.indices[position])
        if isinstance(self.images, LabelledImages):
            image, label = self.images[index]
        else:
            item = self.images[index]
            image, label = (to_rgb(item) if isinstance(item, Image.Image) else read_image(item)), -1
        if self.in_chans == 1:
            image = image.convert("L")
        return self.transform(image), label


def eval_loader(
    images: Pictures,
    model: torch.nn.Module,
    *,
    batch_size: int = 256,
    num_workers: int = 0,
    indices: Sequence[int] | np.ndarray | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> DataLoader:
    """Batches (B, C, H, W) float and labels (B,) int64 (-1 if unlabelled), in order, as `model` expects its input.

    Args:
        images: labelled images, or PIL images and paths.
        model: a timm model; its preprocessing is used.
        indices: the images to visit, in this order; all by default.
    Raises: UnreadableImage for an image that does not decode.
    """
    chosen = np.arange(len(images)) if indices is None else np.asarray(indices, np.int64)
    transform = preprocessing(model, img_size=img_size)
    dataset: Any = _Transformed(images, transform, chosen, in_channels(model))
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, num_workers=num_workers)


def readable(images: LabelledImages, *, threads: int = 2) -> Iterator[tuple[int, Image.Image]]:
    """(index, picture) of every image that decodes, in order; the others are named in the log, and counted."""

    def read(index: int) -> Image.Image | UnreadableImage:
        try:
            return images[index][0]
        except UnreadableImage as err:
            return err

    failed = 0
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(images), 1024):  # not all at once: pictures would pile up before they are used
            chunk = range(start, min(start + 1024, len(images)))
            for index, picture in zip(chunk, pool.map(read, chunk), strict=True):
                if isinstance(picture, UnreadableImage):
                    failed += 1
                    logger.warning("left out, unreadable: %s", picture)
                else:
                    yield index, picture
    if failed:
        logger.warning("%s: %d of %d images are unreadable", images.name, failed, len(images))


def only_readable(images: LabelledImages) -> LabelledImages:
    """`images` without those that do not decode, each named in the log."""
    kept = [index for index, _ in readable(images)]
    return images if len(kept) == len(images) else images.subset(kept)
