"""What the layers of an unrolled model do to the objective they were derived from.

Works for any `UnrolledTransformer`. What a model has decides what is measured: `.attn` (an MSSA) in a block gives the
compression, `coefficients()` its branch weights, three states with `threshold()` ADMM's residuals and objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aotadmm_timm.evaluating import evaluating
from aotadmm_timm.models.unrolled import UnrolledTransformer, layer_states
from aotadmm_timm.theory.rates import coding_rate, compression_rate, compression_rate_gradient, project

_CHUNK = 64  # images at a time

Row = dict[str, Any]


def layer_curves(model: nn.Module, images: Tensor, *, eps: float = 0.1) -> list[Row]:
    """One row for the initial states and one after each layer; means over the images.

    Args:
        model: an `UnrolledTransformer`; it runs in eval mode.
        images: (B, C, H, W), normalised as the model expects.
        eps: coding precision; eps^2 = .01 as in CRATE's curves.
    Returns: rows with `layer` and, where it applies,
        sparsity: share of exact zeros in the readout (V of AoT-ADMM, the code of CRATE).
        compression: sum over heads of R of the head's tokens, each scaled to unit length, as in CRATE's curves
            (Eqs. 6 and 7). Row l takes the states after layer l and the bases of layer l; row 0 those of layer 1.
            Tokens are taken as the attention receives them, after its LayerNorm.
        compression_falls: share of images whose R^c(Z | U), of the state itself, is lower after the layer than before
            it, same layer's bases.
        primal_residual, dual_residual: root mean square of Z - V and of V - V_previous (ADMM's, in units of rho).
        objective: the augmented Lagrangian of Eq. (9) over rho and over N d,
            b / c (N eps^2 / p) R^c(Z | U) + tau |V|_1 + 1/2 |Z - V + W|_F^2
            with b = eta gamma, c = eta rho, tau = lambda / rho and gamma = p / (N eps^2), the factor that the gradient
            of R^c has at small signals (the paper leaves gamma open: "determined by the coding precision").
        objective_falls: share of images whose objective is lower after the layer than before it, same layer's bases.
        coefficients: (a, b, c).
    Raises: ValueError if the model is not an unrolled one or there is no image.
    """
    with _measuring(model) as blocks:
        rows: list[Row] = [{"layer": layer} for layer in range(len(blocks) + 1)]
        for chunk in _chunks(model, images):
            for row, values in zip(rows, _chunk_curves(model, chunk, eps), strict=True):
                for key, value in values.items():
                    row[key] = row.get(key, 0.0) + value.double().sum().item() / len(images)
        for row, block in zip(rows[1:], blocks, strict=True):
            if hasattr(block, "coefficients"):
                row["coefficients"] = block.coefficients().tolist()
    return rows


def _chunk_curves(model: Any, images: Tensor, eps: float) -> Iterator[dict[str, Tensor]]:
    """Per-image values, (B,) each, for layer 0, 1, ..."""
    states = layer_states(model, images)
    for layer in range(len(states)):
        values = {"sparsity": (model.readout(states[layer]) == 0).float().mean((1, 2))}
        block = model.blocks[max(layer - 1, 0)]
        after = attention_input(block, states[layer])
        if after is not None:
            values["compression"] = _unit_compression(after, subspaces(block), eps)
        if layer > 0:
            rates = []
            if after is not None:
                rates = [compression_rate(s[0], subspaces(block), eps=eps) for s in states[layer - 1 : layer + 1]]
                values["compression_falls"] = (rates[1] < rates[0]).float()
            if _is_admm(block, states[layer]):
                z, v, _ = states[layer]
                values["primal_residual"] = _rms(z - v)
                values["dual_residual"] = _rms(v - states[layer - 1][1])
                if rates:
                    values["objective"] = admm_objective(block, states[layer], rates[1], eps=eps)
                    start = admm_objective(block, states[layer - 1], rates[0], eps=eps)
                    values["objective_falls"] = (values["objective"] < start).float()
        yield values


def admm_objective(block: Any, states: tuple[Tensor, ...], rate: Tensor, *, eps: float) -> Tensor:
    """Eq. (9) over rho and N d for states (Z, V, W) (B, N, d) and R^c values (B,); see `layer_curves`."""
    z, v, w = states
    _, b, c = block.coefficients().unbind(0)
    n, d = z.shape[1:]
    precision = n * eps**2 / (d // block.attn.num_heads)
    smooth = b / c * precision * rate
    return (smooth + block.threshold() * v.abs().sum((1, 2)) + (z - v + w).square().sum((1, 2)) / 2) / (n * d)


def theory_gap(model: nn.Module, images: Tensor, *, eps: float = 0.1) -> list[Row]:
    """How far each layer is from the operator it was derived as; one row a layer, means over heads or images.

    Args: as `layer_curves`.
    Returns: rows with `layer` and, for blocks with MSSA,
        gram_error: |U_k^T U_k - I|_F / sqrt(p): zero for the orthonormal bases that Eq. (6) assumes.
        gram_error_scaled: the same after dividing U_k^T U_k by its mean diagonal: the shape without the scale.
        output_cosine: <W_O, U> / (|W_O| |U|): 1 if the output projection is the U of Eq. (12) up to scale.
        output_distance: |W_O - U|_F / |U|_F.
        gradient_cosine: cosine, per image, of the exact gradient of R^c and Z - MSSA(Z), which Eq. (11) puts in its
            place; Z as the attention receives it, MSSA as the network computes it.
    """
    with _measuring(model) as blocks:
        rows = [{"layer": i + 1, **_subspace_shape(block)} for i, block in enumerate(blocks)]
        for chunk in _chunks(model, images):
            states = layer_states(model, chunk)
            for row, block, entering in zip(rows, blocks, states[:-1], strict=True):
                x = attention_input(block, entering)
                if x is None:
                    continue
                exact = compression_rate_gradient(x, subspaces(block), eps=eps).flatten(1)
                step = (x - block.attn(x)).flatten(1)
                total = F.cosine_similarity(exact, step).double().sum().item() / len(images)
                row["gradient_cosine"] = row.get("gradient_cosine", 0.0) + total
    return rows


def _subspace_shape(block: Any) -> Row:
    if not has_subspaces(block):
        return {}
    bases = subspaces(block).double()
    gram = bases.mT @ bases
    p = gram.shape[-1]
    identity = torch.eye(p, dtype=gram.dtype, device=gram.device)
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    u = block.attn.qkv.weight.T.double()
    output = u if block.attn.proj is None else block.attn.proj.weight.double()
    return {
        "gram_error": ((gram - identity).norm(dim=(-2, -1)) / p**0.5).mean().item(),
        "gram_error_scaled": ((gram / scale - identity).norm(dim=(-2, -1)) / p**0.5).mean().item(),
        "output_cosine": ((output * u).sum() / (output.norm() * u.norm())).item(),
        "output_distance": ((output - u).norm() / u.norm()).item(),
    }


def has_subspaces(block: Any) -> bool:
    """Whether the block has an MSSA as `.attn`."""
    return hasattr(getattr(getattr(block, "attn", None), "qkv", None), "weight") and hasattr(block.attn, "num_heads")


def subspaces(block: Any) -> Tensor:
    """U_[K] of a block, (K, d, p): the rows of `attn.qkv.weight` are U^T, head by head."""
    weight = block.attn.qkv.weight
    return weight.unflatten(0, (block.attn.num_heads, -1)).mT


def attention_input(block: nn.Module, states: tuple[Tensor, ...]) -> Tensor | None:
    """What the block's attention receives, (B, N, d), when the block gets `states`; None for a block without MSSA."""
    if not has_subspaces(block):
        return None
    seen: list[Tensor] = []
    handle = block.get_submodule("attn").register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        block(*states)
    finally:
        handle.remove()
    return seen[0] if seen else None


def _unit_compression(x: Tensor, bases: Tensor, eps: float) -> Tensor:
    return coding_rate(F.normalize(project(x, bases), dim=-1), eps=eps).sum(-1)


def _is_admm(block: Any, states: tuple[Tensor, ...]) -> bool:
    return len(states) == 3 and hasattr(block, "coefficients") and hasattr(block, "threshold")


def _rms(x: Tensor) -> Tensor:
    return x.square().mean((1, 2)).sqrt()


def _chunks(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    if images.ndim != 4 or len(images) == 0:
        raise ValueError(f"images must be (B, C, H, W) with B >= 1, got {tuple(images.shape)}")
    parameter = next(model.parameters())
    for chunk in images.split(_CHUNK):
        yield chunk.to(device=parameter.device, dtype=parameter.dtype)


@contextmanager
def _measuring(model: Any) -> Iterator[Any]:
    """The model's blocks, in eval mode without gradients; every submodule's own mode is restored."""
    if not isinstance(model, UnrolledTransformer):
        raise ValueError(f"layer-wise measurements need an UnrolledTransformer, got {type(model).__name__}")
    with torch.no_grad(), evaluating(model):
        yield model.blocks
