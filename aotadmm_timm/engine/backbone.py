"""Any timm model as a backbone for views of several sizes, or a refusal that says what to change."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.utils.distributed import distribute_bn
from torch import nn

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluating import evaluating
from aotadmm_timm.pretrained.building import REFUSALS, build_model, check_name, first_line

logger = logging.getLogger(__name__)


def create_backbone(
    name: str,
    sizes: Sequence[int],
    *,
    model_kwargs: Mapping[str, Any] | None = None,
    small_image_stem: bool = False,
) -> tuple[Any, str, dict[str, Any]]:
    """A timm model without classifier that takes square views of all `sizes` (pixels); the first is its own size.

    `img_size` and `dynamic_img_size` are set where the constructor takes them. Its pretrained_cfg then states the size
    that evaluation should use.

    Args:
        name: registered model, untrained.
        small_image_stem: let a convolutional network see small images at full resolution.
    Returns: the model, its registered name, and the arguments that build it again (for config.json).
    Raises: UserError for an unknown name, arguments the model refuses, or a size that it cannot take.
    """
    check_name(name)
    given = dict(model_kwargs or {})
    if given.get("in_chans", 3) != 3:
        raise UserError(f"--model-kwargs in_chans={given['in_chans']}: training images are RGB")
    for key in ("img_size", "dynamic_img_size", "num_classes"):
        if key in given:
            why = "a backbone has no classifier" if key == "num_classes" else "--img-size sets the size"
            raise UserError(f"--model-kwargs {key}={given[key]}: {why}")
    architecture = name
    if small_image_stem:
        architecture, given = "small_image_stem", {"base": name, **given}
    dynamic = {"dynamic_img_size": True} if len(set(sizes)) > 1 else {}
    model, used = build_model(
        architecture, [{"img_size": sizes[0], **dynamic}, {"img_size": sizes[0]}, {}], num_classes=0, **given
    )
    for size in sorted(set(sizes), reverse=True):
        _check_size(model, name, size)
    state_size(model, sizes[0])
    return model, architecture, {**{k: v for k, v in used.items() if k == "img_size"}, **given}


def state_size(model: Any, size: int) -> None:
    """Let the model's configuration say that its images are whole pictures of size x size pixels."""
    config = dict(model.pretrained_cfg)
    for key in ("test_input_size", "test_crop_pct", "file", "state_dict", "url", "hf_hub_id", "source"):
        config.pop(key, None)  # of the weights it started from, if any
    config["input_size"] = (config.get("input_size", (3,))[0], size, size)
    config["crop_pct"] = 1.0
    model.pretrained_cfg = model.default_cfg = config


def image_config(model: Any) -> dict[str, Any]:
    """What a model's weights expect of images, and the names of its classes: the entries that a checkpoint lacks."""
    config = dict(model.pretrained_cfg)
    keys = ("mean", "std", "input_size", "label_names")
    return {key: list(config[key]) for key in keys if config.get(key) is not None}


def _check_size(model: Any, name: str, size: int) -> None:
    """Refuse a size that the model cannot take; warn where nothing is left of its resolution."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch is not None and size < max(patch):
        raise UserError(
            f"model {name}: a view of {size}x{size} pixels is smaller than a patch of {patch[0]}x{patch[1]}"
        )
    try:
        with torch.no_grad(), evaluating(model):
            maps = model.forward_features(torch.zeros(2, 3, size, size))
            features = model.forward_head(maps)
    except REFUSALS as err:
        raise UserError(
            f"model {name} cannot take views of {size}x{size} pixels ({first_line(err)}); choose another --global-size "
            "or --local-size, --num-local 0, or --small-image-stem for a convolutional network"
        ) from None
    if features.ndim != 2:
        raise UserError(f"model {name}: features must be (B, d), got {tuple(features.shape)}; it has no pooling")
    if maps.ndim == 4 and maps.shape[2:] == (1, 1) and patch is None:
        logger.warning(
            "%s shrinks a view of %dx%d pixels to a point before pooling; --small-image-stem keeps more",
            name,
            size,
            size,
        )


def compile_model(model: nn.Module, device: torch.device) -> None:
    """torch.compile, in place."""
    # On CPU inductor's pattern matcher would put back the fused attention that is slow on short sequences.
    model.compile(options={"pattern_matcher": False} if device.type == "cpu" else None)


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Batch statistics over all ranks in the model's BatchNorm layers, in place; where torch can: on CUDA."""
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        return
    if device.type == "cuda":
        timm.layers.convert_sync_batchnorm(model)
    elif distributed.is_main():
        logger.warning("on CPUs each process normalises by its own batch in BatchNorm: N processes do not equal one")


def average_batch_norm(model: nn.Module) -> None:
    """Average the running statistics of the model's BatchNorm layers over the ranks, in place.

    After every step, the ranks then have one model between them: the one that is evaluated, saved and resumed. On CUDA
    they are equal already (`synchronise_batch_norm`).
    """
    if distributed.world_size() > 1 and next(model.parameters()).device.type != "cuda":
        distribute_bn(model, distributed.world_size(), reduce=True)
