"""Weights to start from, whatever they lie in: a run, a folder, the Hub, a timm name, a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from aotadmm_timm.hub.loading import load_model
from aotadmm_timm.hub.publish import checkpoint_weights
from aotadmm_timm.models.checkpoint import unwrap_state_dict

from .backbone import create_with_first, first_line
from .config import UserError, nearest, read_yaml


def open_weights(
    source: str,
    *,
    model: str | None = None,
    img_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The model that `source` holds, with the classes it has there, brought to `img_size` pixels if it can be.

    Args:
        source: run folder or timm `local-dir:` folder, `hf-hub:ORG/NAME`, a timm name with pretrained weights, a
            .safetensors or .pth file, a training checkpoint.
        model: timm name, for a file that does not lie in a run or model folder.
        model_kwargs: constructor arguments, over those stored with the weights.
    Raises: ValueError in one line; tensors that do not fit are named.
    """
    given = dict(model_kwargs or {})
    sizes: list[dict[str, Any]] = [{"img_size": img_size}, {}] if img_size else [{}]
    path = Path(source)
    if path.is_file() and not (path.parent / "config.json").is_file():
        return _from_file(path, model, sizes, given)
    failure: ValueError | None = None
    for size in sizes:
        try:
            return load_model(str(path.parent) if path.is_file() else source, **size, **given)[0]
        except ValueError as err:
            if "img_size" not in str(err):  # convolutional networks do not take it, nor need it
                raise
            failure = err
    assert failure is not None
    raise failure


def _from_file(path: Path, model: str | None, sizes: list[dict[str, Any]], given: dict[str, Any]) -> nn.Module:
    stored: dict[str, Any] = {}
    record = path.parent.parent / "config.yaml"
    if path.parent.name == "checkpoints" and record.is_file():
        stored = read_yaml(record)
    name = model or stored.get("architecture")
    if name is None:
        raise UserError(f"{path}: a file of weights does not say which model it belongs to; add --model NAME")
    if not timm.is_model(name):
        raise UserError(f"unknown model {name!r}{nearest(name, timm.list_models())}")
    state = unwrap_state_dict(checkpoint_weights(path))
    classes = _classes(state, name)
    arguments = {**stored.get("model_args", {}), **given, "num_classes": classes}
    for key in sizes[0]:
        arguments.pop(key, None)
    overlay = {"state_dict": state, "num_classes": classes}
    try:
        return create_with_first(name, sizes, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)[0].eval()
    except ValueError as err:
        raise UserError(f"{path}: {first_line(err)}") from None


def _classes(state: Mapping[str, torch.Tensor], name: str) -> int:
    """Rows of the classifier among the weights of a model; 0 if there is none."""
    config = timm.get_pretrained_cfg(name)
    names = config.classifier if config is not None else None
    head = state.get(f"{names if isinstance(names, str) or not names else names[0]}.weight")
    return len(head) if head is not None else 0


def start_from(source: nn.Module, name: str, **kwargs: Any) -> nn.Module:
    """Another architecture, started from the weights of `source` that it has a place for (its checkpoint filter's say).

    A ViT without MLPs starts from a ViT this way. It takes over the normalisation that the weights are used to.

    Args:
        name: timm name; kwargs: its constructor arguments.
    Raises: UserError naming tensors that do not fit.
    """
    config: Any = source.pretrained_cfg
    overlay = {key: config[key] for key in ("mean", "std", "input_size") if key in config}
    overlay |= {"state_dict": source.state_dict(), "num_classes": getattr(source, "num_classes", 0)}
    size = kwargs.pop("img_size", None)
    sizes: list[dict[str, Any]] = [{"img_size": size}, {}] if size else [{}]
    return create_with_first(name, sizes, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)[0]


def adapt(model: Any, *, num_classes: int, img_size: int | None = None) -> list[str]:
    """Give the model another image size (positions are resampled) and number of classes; returns what is new.

    A classifier of the right number of classes is kept. Names of new parameters are returned: the classifier's only.
    """
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if img_size is not None and own is not None and tuple(own) != (img_size, img_size):
        try:
            model.set_input_size(img_size=(img_size, img_size))
        except (AttributeError, AssertionError, RuntimeError, ValueError) as err:
            raise UserError(f"--img-size {img_size}: the model cannot be resized from {tuple(own)}: {err}") from None
    if model.num_classes == num_classes:
        return []
    model.reset_classifier(num_classes)
    heads = model.get_classifier()
    new = {id(p) for head in (heads if isinstance(heads, tuple) else (heads,)) for p in head.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in new]
