"""A narrow model's weights in a wider one of the same depth, computing the same features several times over."""

from collections.abc import Mapping

import torch
from torch import Tensor

from aotadmm_timm.errors import WeightsMismatch


def widened(narrow: Mapping[str, Tensor], wide: Mapping[str, Tensor], *, seed: int = 0) -> dict[str, Tensor]:
    """State dict of the wide model with which it gives k copies of the narrow model's features, one behind the other.

    After Net2WiderNet (arXiv:1511.05641): rows are repeated; of a weight whose input is repeated too, the copies of an
    input share the old weight in random parts, so that the copies get different gradients and grow apart in training.

    Args:
        narrow, wide: state dicts of one architecture in two widths, k = 2, 3, ... times, with heads of one width (so k
            times as many). Weights that are used in both directions (ISTA's dictionary, `tied_proj`) cannot be shared
            in random parts: their models are not supported.
        seed: of the random parts.
    Returns: tensors in the shapes and dtypes of `wide`.
    Raises: WeightsMismatch naming a tensor that does not fit.
    """
    if missing := sorted(narrow.keys() ^ wide.keys()):
        raise WeightsMismatch(f"widening: {missing[0]} is in one of the two models only")
    if tied := [
        key
        for key in narrow
        if key.endswith("dictionary")
        or (key.endswith("attn.qkv.weight") and key.replace("qkv.weight", "proj.weight") not in narrow)
    ]:
        raise WeightsMismatch(f"widening: {tied[0]} is used in both directions and cannot be repeated")
    fused = {  # queries, keys and values are repeated one by one; MSSA has one projection of that name
        f"{key.removesuffix('.weight')}.{part}"
        for key, value in narrow.items()
        if key.endswith("qkv.weight") and value.shape[0] == 3 * value.shape[1]
        for part in ("weight", "bias")
    }
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for key, target in wide.items():
        value, ratios = narrow[key].float().cpu(), _ratios(key, narrow[key], target)
        if value.ndim:
            blocks = value.chunk(3) if key in fused else [value]
            value = torch.cat([block for block in blocks for _ in range(ratios[0])])
            ratios[0] = 1
        if value.ndim > 1 and ratios[1] > 1:  # (out, in, ...): the copies of an input share its weight
            parts = torch.rand(ratios[1], *value.shape, generator=generator)
            value = torch.cat(list(value * parts / parts.sum(0)), dim=1)
            ratios[1] = 1
        result[key] = value.repeat(*ratios).to(target)
    return result


def _ratios(key: str, narrow: Tensor, wide: Tensor) -> list[int]:
    """How often each dimension is repeated."""
    if narrow.ndim != wide.ndim or any(w % n for n, w in zip(narrow.shape, wide.shape, strict=True)):
        raise WeightsMismatch(f"widening: {key} of shape {tuple(narrow.shape)} does not divide {tuple(wide.shape)}")
    return [w // n for n, w in zip(narrow.shape, wide.shape, strict=True)]
