"""Any timm model as a backbone for views of several sizes, or a refusal that says what to change."""

from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.models import is_model
from torch import nn

import aotadmm_timm  # noqa: F401  (registers the families)

from .config import UserError, nearest


def create_backbone(
    name: str,
    sizes: Sequence[int],
    *,
    pretrained: bool = False,
    model_kwargs: Mapping[str, Any] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model without classifier that takes square views of all `sizes` (pixels); the first is its own size.

    `img_size` and `dynamic_img_size` are set where the constructor takes them. Its pretrained_cfg then states the size
    and the normalisation (mean, std, if given) that evaluation should use.

    Returns: the model, and the arguments beyond its name that build it again (for config.json).
    Raises: UserError for an unknown name, arguments the model refuses, or a size that it cannot take.
    """
    if not name.startswith(("hf-hub:", "hf_hub:", "local-dir:")) and not is_model(name):
        raise UserError(f"unknown model {name!r}{nearest(name, timm.list_models())}")
    given = dict(model_kwargs or {})
    dynamic = {"dynamic_img_size": True} if len(set(sizes)) > 1 else {}
    attempts: list[dict[str, Any]] = [{"img_size": sizes[0], **dynamic}, {"img_size": sizes[0]}, {}]
    model, used, failure = None, {}, None
    for extra in attempts:
        try:
            model = timm.create_model(name, pretrained=pretrained, num_classes=0, **{**extra, **given})
        except TypeError as err:  # the constructor does not know an argument
            failure = failure or err
            continue
        except (AssertionError, RuntimeError, ValueError, OSError) as err:
            raise UserError(f"model {name}: {_first_line(err)}") from None
        used = extra
        break
    if model is None:
        raise UserError(f"model {name}: {failure}")
    for size in sorted(set(sizes), reverse=True):
        _check_size(model, name, size)
    config = dict(model.pretrained_cfg)
    config["input_size"] = (config.get("input_size", (3,))[0], sizes[0], sizes[0])
    config.pop("test_input_size", None)
    config["crop_pct"] = 1.0
    if mean is not None and std is not None:
        config["mean"], config["std"] = tuple(mean), tuple(std)
    model.pretrained_cfg = model.default_cfg = config
    kept = {k: v for k, v in used.items() if k == "img_size"}
    return model, {**kept, **given}


def _check_size(model: nn.Module, name: str, size: int) -> None:
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch is not None and size < max(patch):
        raise UserError(
            f"model {name}: a view of {size}x{size} pixels is smaller than a patch of {patch[0]}x{patch[1]}"
        )
    channels = int(getattr(model, "in_chans", 3))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            features = model(torch.zeros(2, channels, size, size))
    except (AssertionError, RuntimeError, ValueError) as err:
        raise UserError(
            f"model {name} cannot take views of {size}x{size} pixels ({_first_line(err)}); choose other --global-size "
            "or --local-size, --num-local 0, or --small-image-stem for a convolutional network"
        ) from None
    finally:
        model.train(training)
    if features.ndim != 2:
        raise UserError(f"model {name}: features must be (B, d), got {tuple(features.shape)}; it has no pooling")


def _first_line(err: BaseException) -> str:
    return str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__
