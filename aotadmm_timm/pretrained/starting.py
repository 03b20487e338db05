"""A model that starts from another one's weights: another architecture, or a wider one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aotadmm_timm.errors import UserError, WeightsMismatch
from aotadmm_timm.evaluating import evaluating
from aotadmm_timm.models.widening import widened
from aotadmm_timm.pretrained.building import build_model, check_name
from aotadmm_timm.pretrained.opening import is_bare_file, open_model


def open_or_start(
    source: str, *, model: str | None, img_size: int | None, model_kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """`open_model`; where another architecture lies than `model`, that one instead, started from it (`start_from`).

    Raises: as those two.
    """
    if model is not None and not is_bare_file(Path(source)):
        stored: Any
        stored, origin = open_model(source)
        if origin.architecture != model.partition(".")[0]:
            check_name(model)
            size = {"img_size": img_size} if img_size else {}
            try:
                return start_from(stored, model, num_classes=stored.num_classes, **size, **(model_kwargs or {}))
            except UserError as err:
                raise type(err)(
                    f"{source}: {model} cannot start from weights of {origin.architecture}: {err}"
                ) from None
    return open_model(source, model=model, img_size=img_size, model_kwargs=model_kwargs)[0]


def start_from(source: nn.Module, name: str, **kwargs: Any) -> nn.Module:
    """Another architecture, started from the weights of `source` that it has a place for (its checkpoint filter's say).

    A ViT without MLPs starts from a ViT this way. It takes over the normalization that the weights are used to.

    Args:
        name: timm name; kwargs: its constructor arguments.
    Raises: UserError naming tensors that do not fit.
    """
    config: Any = source.pretrained_cfg
    overlay = {key: config[key] for key in ("mean", "std", "input_size") if key in config}
    overlay |= {"state_dict": source.state_dict(), "num_classes": getattr(source, "num_classes", 0)}
    size = kwargs.pop("img_size", None)
    sizes: list[dict[str, Any]] = [{"img_size": size}, {}] if size else [{}]
    return build_model(name, sizes, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)[0]


def initialize(backbone: Any, source: str, img_size: int) -> None:
    """Give a backbone without classifier the weights, and the normalization of images, that `source` holds.

    Weights of a narrower model of the same family are widened (`models.widening`); both then compute the same features.
    For patches of another size stem and positions are interpolated, and features are nearly the same.

    Args:
        source: as in `open_model`; img_size: side of its images [pixels].
    Raises: UserError if the two models do not fit.
    """
    start: Any
    start, _ = open_model(source, num_classes=0, img_size=img_size)
    if (patch := _patch_size(backbone)) not in (None, _patch_size(start)):
        start, _ = open_model(source, num_classes=0, img_size=img_size, model_kwargs={"patch_size": patch})
    weights, own = start.state_dict(), backbone.state_dict()
    try:
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
            weights = widened(weights, own)
        times = backbone.num_features // start.num_features
        if _heads(backbone) != [times * heads for heads in _heads(start)]:  # their number is in no state dict
            raise UserError(
                f"{_heads(start)[0]} heads cannot become {_heads(backbone)[0]}: one width is needed in both"
            )
        backbone.load_state_dict(weights)
        images = torch.rand(2, 3, img_size, img_size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), evaluating(start, backbone):
            want, got = start(images), backbone(images)
        if not torch.allclose(got, want.repeat(1, times), rtol=1e-3, atol=1e-4):
            raise UserError("the model computes other features with its weights: their arguments differ")
    except UserError as err:
        raise WeightsMismatch(f"--initial-checkpoint {source}: {err}") from None
    data = {key: start.pretrained_cfg[key] for key in ("mean", "std")}
    backbone.pretrained_cfg = backbone.default_cfg = {**backbone.pretrained_cfg, **data}


def _patch_size(model: Any) -> Any:
    return getattr(getattr(model, "patch_embed", None), "patch_size", None)


def _heads(model: Any) -> list[int]:
    return [module.num_heads for module in model.modules() if isinstance(getattr(module, "num_heads", None), int)]
