"""Convolutional networks for small images: `small_image_stem`, a timm model with another's body.

    timm.create_model("small_image_stem", base="resnet18", num_classes=10)

ResNets and their kin shrink a 32x32 picture to 8x8 before the first stage. Here the first convolution is 3x3 with
stride 1 and the max-pool after it is dropped, as is usual on CIFAR (SimCLR, arXiv:2002.05709, appendix B.9).
"""

from typing import Any

import timm
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.models.configs import cifar_cfg

_POOLS = ("maxpool", "features.pool0", "stem.pool")  # ResNets, DenseNets, ByobNets


def _build(base: str, **kwargs: Any) -> Any:
    model: Any = timm.create_model(base, **kwargs)
    name = model.pretrained_cfg.get("first_conv")
    first = model.get_submodule(name) if isinstance(name, str) else None
    if hasattr(model, "patch_embed") or not isinstance(first, nn.Conv2d):
        raise UserError(
            f"small_image_stem: {base} has no convolutional stem; give a vision transformer a smaller patch_size"
        )
    _replace(
        model,
        name,
        nn.Conv2d(
            first.in_channels,
            first.out_channels,
            kernel_size=3,
            stride=1,
            padding=1,
            bias=first.bias is not None,
            device=first.weight.device,
            dtype=first.weight.dtype,
        ),
    )
    kept = first.stride[0]  # what the old stem shrank, and this one keeps
    for pool in _POOLS:
        if any(pool == found for found, _ in model.named_modules()):
            _replace(model, pool, nn.Identity())
            kept *= 2
    for level in model.feature_info:
        level["reduction"] = max(1, level["reduction"] // kept)
    return model


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


default_cfgs = generate_default_cfgs(
    {"small_image_stem": cifar_cfg(first_conv=None, classifier="head", fixed_input_size=False)}
)


@register_model
def small_image_stem(pretrained: bool = False, base: str = "resnet18", **kwargs: Any) -> Any:
    """The timm model `base` with a stem for small images; of a feature pyramid, the four deepest levels by default.

    Raises: UserError if `base` has no convolutional stem or is unknown.
    """
    own = timm.get_pretrained_cfg(base)
    if own is None:
        raise UserError(f"small_image_stem: unknown base {base!r}")
    names = {"first_conv": own.first_conv, "classifier": own.classifier}
    kwargs["pretrained_cfg_overlay"] = {**names, **(kwargs.get("pretrained_cfg_overlay") or {})}
    pyramid = {"out_indices": kwargs.pop("out_indices", 4), "feature_cls": "getter"}
    model = build_model_with_cfg(_build, "small_image_stem", pretrained, base=base, feature_cfg=pyramid, **kwargs)
    if "pool_size" in model.pretrained_cfg:
        sides, reduction = model.pretrained_cfg["input_size"][1:], model.feature_info[-1]["reduction"]
        model.pretrained_cfg["pool_size"] = tuple(side // reduction for side in sides)
    return model
