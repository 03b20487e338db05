"""How a checkpoint enters a model of this package: unwrapped, in the model's shapes, and whole."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv, get_pretrained_cfg, is_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from aotadmm_timm.errors import DamagedFile, WeightsMismatch
from aotadmm_timm.layers.patch_embed import STEM_KEYS, LinearPatchEmbed, adapt_linear_stem

_logger = logging.getLogger(__name__)

_WRAPPERS = ("state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "backbone.", "model.")


def checkpoint_filter_fn(state_dict: dict[str, Any], model: VisionTransformer) -> dict[str, Tensor]:
    """A checkpoint in this package's names, possibly wrapped, in the shapes of `model`.

    The filter of families that nobody else publishes weights of; one with a published naming has its own, which
    translates in between.

    Raises: WeightsMismatch as `fit_to_model` and `unwrap_state_dict`.
    """
    return fit_to_model(unwrap_state_dict(state_dict), model)


def unwrap_state_dict(content: Any) -> dict[str, Tensor]:
    """The bare state dict inside training checkpoints and wrappers, nested in any order.

    Enters `state_dict`, `model` or `model_state_dict`; strips `module.` (DDP), `_orig_mod.` (torch.compile) and
    `model.`; where some names start with `backbone.`, keeps only those (the rest is projector, teacher, probe, and is
    named in the log). Entries that are no tensors (epoch, arguments) are left out.

    Raises: DamagedFile naming the entries if there are no tensors; WeightsMismatch if only some names carry `module.`
        or `model.`, or if parameters lie beside a wrapper: what belongs to the model cannot be told then.
    """
    if not isinstance(content, Mapping):
        raise DamagedFile(f"no state dict but {type(content).__name__}")
    inner = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
    tensors = {key.replace("_orig_mod.", ""): t for key, t in content.items() if _is_named_tensor(key, t)}
    if inner is not None:
        if beside := [key for key in tensors if "." in key]:
            where = f"both in {inner!r} and beside it ({_listed(beside)})"
            raise WeightsMismatch(f"parameters {where}: give one state dict")
        return unwrap_state_dict(content[inner])
    if not tensors:
        entries = [f"{key} ({type(value).__name__})" for key, value in content.items()]
        raise DamagedFile(f"no state dict: there are no tensors in {_listed(entries) if entries else 'it'}")
    prefix = next((p for p in _PREFIXES if any(key.startswith(p) for key in tensors)), None)
    if prefix is None:
        return tensors
    others = [key for key in tensors if not key.startswith(prefix)]
    if others and prefix != "backbone.":
        raise WeightsMismatch(
            f"only some names of the state dict start with {prefix!r}, {_listed(others)} not: which belong to the "
            "model cannot be told; give a state dict of the model alone"
        )
    if others:
        _logger.info(f"Only backbone.* of the checkpoint is used, without {_listed(others)}")
    return unwrap_state_dict({key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)})


def _is_named_tensor(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, Tensor)


def _listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def renamed(state_dict: dict[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Every name rewritten by the first (pattern, replacement) that matches it; names that none matches are kept."""
    result = {}
    for key, tensor in state_dict.items():
        for pattern, replacement in rules:
            key, hits = re.subn(pattern, replacement, key)
            if hits:
                break
        result[key] = tensor
    return result


def fit_to_model(state_dict: dict[str, Tensor], model: VisionTransformer) -> dict[str, Tensor]:
    """Bring a state dict in native names to the shapes of `model`, in which everything must have its place.

    The stem is adapted to patch size and channels, positions are resampled to the grid, and the fit is checked.

    Args:
        state_dict: bare, in the names of the model.
        model: the model it will be loaded into, with `pretrained_cfg` set (timm's factory does).
    Raises: WeightsMismatch naming the tensors, with both shapes, that do not fit, or what nothing says of the source.
    """
    state = _adapt_stem_and_positions(dict(state_dict), model)
    check_fit(state, model)
    return state


def check_fit(state: dict[str, Tensor], model: VisionTransformer, adapted_later: tuple[str, ...] = ()) -> None:
    """Refuse, by name and with both shapes, whatever does not fit `model`.

    The classifier alone may differ: its tensors are dropped from `state` if the model has none, may be missing, and
    may have another shape where timm replaces them (`num_classes` of the pretrained cfg differs from the model's).

    Args:
        state: names and tensors to be loaded.
        model: with `pretrained_cfg` set.
        adapted_later: names whose shape timm adapts after this.
    Raises: WeightsMismatch.
    """
    own = model.state_dict()
    classifier = {"head.weight", "head.bias"}
    cfg = getattr(model, "pretrained_cfg", {})
    replaced = cfg.get("num_classes", model.num_classes) != model.num_classes
    if model.num_classes == 0 and (dropped := classifier & state.keys()):
        _logger.info(f"Classifier {tuple(state['head.weight'].shape)} left out: the model has none")
        for key in dropped:
            del state[key]

    def excused(key: str) -> bool:
        return (replaced and key in classifier) or key in adapted_later

    problems = [
        f"{key} is {tuple(t.shape)} in the checkpoint, {tuple(own[key].shape)} in the model"
        for key, t in state.items()
        if key in own and t.shape != own[key].shape and not excused(key)
    ]
    problems += [f"{key} {tuple(t.shape)} has no place in the model" for key, t in state.items() if key not in own]
    problems += [
        f"{key} {tuple(t.shape)} is missing from the checkpoint"
        for key, t in own.items()
        if key not in state and not excused(key)
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise WeightsMismatch(f"the checkpoint does not fit {type(model).__name__}: {'; '.join(problems[:5])}{more}")


def _adapt_stem_and_positions(state: dict[str, Tensor], model: VisionTransformer) -> dict[str, Tensor]:
    """Bring stem and positions to the model's patch size, channels and grid. Odd shapes are left for `check_fit`."""
    weight, pos_embed = state.get("patch_embed.proj.weight"), state.get("pos_embed")
    embed: Any = model.patch_embed
    patch = embed.patch_size
    if weight is not None and isinstance(embed, LinearPatchEmbed) and weight.ndim == 2:
        patch, chans = _linear_kernel(weight.shape[1], model)
        old, new = (*patch, chans), (*embed.patch_size, embed.in_chans)
        if old != new:
            stem = {key: state[f"patch_embed.{key}"] for key in STEM_KEYS if f"patch_embed.{key}" in state}
            state |= {f"patch_embed.{key}": t for key, t in adapt_linear_stem(stem, old, new).items()}
    elif weight is not None and weight.ndim == 4:
        patch = (weight.shape[2], weight.shape[3])
        if isinstance(embed.proj, nn.Conv2d):
            weight = adapt_input_conv(embed.proj.in_channels, weight, base_chans=weight.shape[1])
            state["patch_embed.proj.weight"] = resample_patch_embed(weight, list(embed.patch_size))
    same_prefix = ("cls_token" in state) == (model.cls_token is not None)
    if pos_embed is not None and pos_embed.ndim == 3 and model.pos_embed is not None and same_prefix:
        prefix = 0 if model.no_embed_class else model.num_prefix_tokens
        grid = _source_grid(pos_embed.shape[1] - prefix, patch, model)
        if grid != embed.grid_size:
            state["pos_embed"] = resample_abs_pos_embed(pos_embed, list(embed.grid_size), list(grid), prefix)
    return state


def _source_input(model: VisionTransformer) -> tuple[int, tuple[int, int]]:
    """Channels and image size the checkpoint was made for, from its own config if it has one, else the model's cfg."""
    args = getattr(model, "pretrained_model_args", {})
    chans, *size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    size = args.get("img_size", size)
    height, width = (size, size) if isinstance(size, int) else size
    return args.get("in_chans", chans), (height, width)


def _source_is_stated(model: VisionTransformer) -> bool:
    """Whether `_source_input` is known of this checkpoint, or only what the architecture is registered with.

    It is known of registered weights, and where a model folder, an overlay or `pretrained_model_args` says so.
    """
    cfg = getattr(model, "pretrained_cfg", {})
    if getattr(model, "pretrained_model_args", {}) or cfg.get("source") in ("hf-hub", "local-dir"):
        return True
    name = ".".join(filter(None, (cfg.get("architecture"), cfg.get("tag"))))
    registered = get_pretrained_cfg(name) if name and is_model(name) else None
    if registered is None or tuple(cfg.get("input_size", ())) != tuple(registered.input_size):
        return True
    foreign = cfg.get("state_dict") or any(cfg.get(key) != getattr(registered, key) for key in ("file", "url"))
    return not foreign


_HOW_TO_STATE = (
    "by pretrained_cfg_overlay=dict(input_size=(C, H, W)), or pretrained_model_args=dict(in_chans=C, img_size=(H, W)) "
    "if they are those of the registered model"
)


def _linear_kernel(fan_in: int, model: VisionTransformer) -> tuple[tuple[int, int], int]:
    """Patch size and channels of a linear stem with `fan_in` inputs, square unless it is the model's own.

    Raises: WeightsMismatch if no square patch fits, or both a square patch and the model's own, and nothing says which.
    """
    embed: Any = model.patch_embed
    chans, _ = _source_input(model)
    side = math.isqrt(fan_in // chans)
    square = side * side * chans == fan_in
    own = fan_in == embed.proj.weight.shape[1]
    if own and square and ((side, side), chans) != (embed.patch_size, embed.in_chans) and not _source_is_stated(model):
        raise WeightsMismatch(
            f"patch_embed.proj.weight has {fan_in} inputs: patches of {side}x{side} pixels and {chans} channels, or of "
            f"{embed.patch_size[0]}x{embed.patch_size[1]} and {embed.in_chans}? Name the channels {_HOW_TO_STATE}"
        )
    if square:
        return (side, side), chans
    if own:
        return embed.patch_size, embed.in_chans
    raise WeightsMismatch(
        f"patch_embed.proj.weight has {fan_in} inputs, the model {embed.proj.weight.shape[1]}; {fan_in} is no square "
        f"patch of {chans} channels: name the channels {_HOW_TO_STATE}"
    )


def _source_grid(count: int, patch: tuple[int, int], model: VisionTransformer) -> tuple[int, int]:
    """Rows and columns of `count` positions: by the checkpoint's image size where that agrees, else square.

    Raises: WeightsMismatch if neither fits, or the model's own grid does as well and nothing says which.
    """
    _, (height, width) = _source_input(model)
    grid = (height // patch[0], width // patch[1])
    side = math.isqrt(count)
    if grid[0] * grid[1] != count and side * side != count:
        raise WeightsMismatch(
            f"pos_embed holds {count} patch positions: neither the {grid[0]}x{grid[1]} grid of a {height}x{width} "
            f"image nor a square one; name the image size {_HOW_TO_STATE}"
        )
    found = grid if grid[0] * grid[1] == count else (side, side)
    own: tuple[int, int] = model.patch_embed.grid_size
    if own != found and own[0] * own[1] == count and not _source_is_stated(model):
        raise WeightsMismatch(
            f"pos_embed holds {count} patch positions: a {found[0]}x{found[1]} grid, or {own[0]}x{own[1]} as in the "
            f"model? Name the image size {_HOW_TO_STATE}"
        )
    return found
