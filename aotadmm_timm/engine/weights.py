"""Weights to start from, whatever they lie in: a run, a folder, the Hub, a timm name, a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from aotadmm_timm.errors import UserError, nearest
from aotadmm_timm.hub.loading import load_model, load_state, read_config
from aotadmm_timm.hub.publish import checkpoint_weights
from aotadmm_timm.models.widening import widened
from aotadmm_timm.runs.config import read_yaml

from .backbone import create_with_first, first_line


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
        model: timm name, for a file that does not lie in a run or model folder; elsewhere it must be the stored one.
        model_kwargs: constructor arguments, over those stored with the weights.
    Raises: ValueError in one line; tensors that do not fit are named.
    """
    given = dict(model_kwargs or {})
    sizes: list[dict[str, Any]] = [{"img_size": img_size}, {}] if img_size else [{}]
    path = Path(source)
    if _is_bare_file(path):
        return _from_file(path, model, sizes, given)
    name = f"local-dir:{path.parent}" if path.is_file() else source
    failure: ValueError | None = None
    for size in sizes:
        try:
            loaded, origin = load_model(name, **size, **given)
            break
        except ValueError as err:
            if "img_size" not in str(err):  # convolutional networks do not take it, nor need it
                raise
            failure = err
    else:
        assert failure is not None
        raise failure
    if model is not None and origin.architecture != model.partition(".")[0]:
        raise UserError(f"{source}: the weights are of {origin.architecture}, not of {model}")
    return loaded


def open_or_start(
    source: str, *, model: str | None, img_size: int | None, model_kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """`open_weights`; where another architecture lies than `model`, that one instead, started from them (`start_from`).

    Raises: as those two.
    """
    if model is not None and not _is_bare_file(Path(source)):
        stored: Any = open_weights(source)
        if stored.pretrained_cfg["architecture"] != model.partition(".")[0]:
            if not timm.is_model(model):
                raise UserError(f"unknown model {model!r}{nearest(model, timm.list_models())}")
            size = {"img_size": img_size} if img_size else {}
            try:
                return start_from(stored, model, num_classes=stored.num_classes, **size, **(model_kwargs or {}))
            except UserError as err:
                origin = stored.pretrained_cfg["architecture"]
                raise UserError(f"{source}: {model} cannot start from weights of {origin}: {err}") from None
    return open_weights(source, model=model, img_size=img_size, model_kwargs=model_kwargs)


def _is_bare_file(path: Path) -> bool:
    """Whether `path` is a file other than the weights of a model folder."""
    return path.is_file() and not (path.name == "model.safetensors" and (path.parent / "config.json").is_file())


def _from_file(path: Path, model: str | None, sizes: list[dict[str, Any]], given: dict[str, Any]) -> nn.Module:
    """The model of a file of weights: named by `model`, or by the config.json beside it or the run it lies in."""
    stored: dict[str, Any] = {}
    config, record = path.parent / "config.json", path.parent.parent / "config.yaml"
    if config.is_file():
        stored = read_config(config)
    elif path.parent.name == "checkpoints" and record.is_file():
        stored = read_yaml(record)
    name = model or stored.get("architecture")
    if name is None:
        raise UserError(f"{path}: a file of weights does not say which model it belongs to; add --model NAME")
    if not timm.is_model(name):
        raise UserError(f"unknown model {name!r}{nearest(name, timm.list_models())}")
    if name != stored.get("architecture"):
        stored = {}  # arguments of another architecture
    keys = ("mean", "std", "input_size", "label_names")
    overlay = {key: value for key in keys if (value := stored.get("pretrained_cfg", {}).get(key)) is not None}
    state = checkpoint_weights(path)
    failure: Exception | None = None
    for size in sizes:
        try:
            return load_state(name, state, overlay=overlay, **{**stored.get("model_args", {}), **given, **size})
        except TypeError as err:  # the constructor does not know img_size
            failure = err
        except ValueError as err:
            raise UserError(f"{path}: {first_line(err)}") from None
    raise UserError(f"{path}: model {name}: {failure}")


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


def initialise(backbone: Any, source: str, img_size: int) -> None:
    """Give a backbone without classifier the weights, and the normalisation of images, that `source` holds.

    Weights of a narrower model of the same family are widened (`models.widening`); both then compute the same features.

    Args:
        source: as in `open_weights`; img_size: side of its images [pixels].
    Raises: UserError if the two models do not fit.
    """
    start: Any = open_weights(source, img_size=img_size)
    adapt(start, num_classes=0, img_size=img_size)
    weights, own = start.state_dict(), backbone.state_dict()
    try:
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
            weights = widened(weights, own)
        times = backbone.num_features // start.num_features
        if _heads(backbone) != [times * heads for heads in _heads(start)]:  # their number is in no state dict
            raise ValueError(
                f"{_heads(start)[0]} heads cannot become {_heads(backbone)[0]}: one width is needed in both"
            )
        backbone.load_state_dict(weights)
        images = torch.rand(2, 3, img_size, img_size, generator=torch.Generator().manual_seed(0))
        training = backbone.training
        with torch.no_grad():
            want, got = start.eval()(images), backbone.eval()(images)
        backbone.train(training)
        if not torch.allclose(got, want.repeat(1, times), rtol=1e-3, atol=1e-4):
            raise ValueError("the model computes other features with its weights: their arguments differ")
    except ValueError as err:
        raise UserError(f"--initial-checkpoint {source}: {err}") from None
    data = {key: start.pretrained_cfg[key] for key in ("mean", "std")}
    backbone.pretrained_cfg = backbone.default_cfg = {**backbone.pretrained_cfg, **data}


def _heads(model: Any) -> list[int]:
    return [module.num_heads for module in model.modules() if isinstance(getattr(module, "num_heads", None), int)]


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
