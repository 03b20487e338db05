"""Proximal operators and the updates that are unrolled into layers: pure functions, as the papers have them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from aotadmm_timm.precision import at_least_float32


def soft_threshold(x: Tensor, threshold: Tensor) -> Tensor:
    """One-sided soft threshold ReLU(x - tau): the proximal operator of tau * ||.||_1 over x >= 0 (AoT-ADMM, Eq. 17)."""
    return F.relu(x - threshold)


def rms_rescale(x: Tensor, gain: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the features of each token, times `gain` (d,) if given.  (..., d) -> (..., d)."""
    return F.rms_norm(x, (x.shape[-1],), None if gain is None else gain.to(x.dtype), eps)


def add_product(x: Tensor, factor: Tensor, weight: Tensor, scale: float, at_once: bool = False) -> Tensor:
    """x + scale * factor W^T.  x (..., d), factor (..., e), W (d, e) -> (..., d).

    `at_once` is one operation, which saves a pass over the product (a quarter of ISTA's time in bf16 on CPU).
    """
    if at_once:
        return torch.addmm(x.flatten(0, -2), factor.flatten(0, -2), weight.t(), alpha=scale).view(x.shape)
    return torch.add(x, F.linear(factor, weight), alpha=scale)


def ista_step(
    y: Tensor,
    dictionary: Tensor,
    step_size: float,
    sparsity: float,
    one_product: bool = False,
    at_once: bool = False,
) -> Tensor:
    """One ISTA step of the non-negative LASSO, started at y itself.

    ReLU(y + eta D^T (y - D y) - eta lambda)   (CRATE, arXiv:2306.01129, Eq. 17)

    Args:
        y: tokens (..., d).
        dictionary: D (d, d).
        step_size: eta.
        sparsity: lambda.
        one_product: (D^T - D^T D) y instead, one product after one of d x d x d: for more than d tokens.
        at_once: as in `add_product`.
    Returns: (..., d), non-negative.
    Differs from the paper's code, which computes D^T y - D^T D y in three products.
    """
    if one_product:
        ascent = torch.addmm(dictionary.t(), dictionary.t(), dictionary, alpha=-1)
        code = add_product(y, y, ascent, step_size, at_once)
    else:
        residual = add_product(y, y, dictionary, -1.0, at_once)
        code = add_product(y, residual, dictionary.t(), step_size, at_once)
    return F.relu(code - step_size * sparsity)


def overcomplete_ista(
    y: Tensor,
    dictionary: Tensor,
    decoder: Tensor,
    step_size: float,
    sparsity: float,
    at_once: bool = False,
) -> Tensor:
    """Two ISTA steps from zero in a wide dictionary, decoded by a second one (CRATE-alpha, arXiv:2405.20299).

    a1 = ReLU(eta D^T y - eta lambda);  a2 = ReLU(a1 + eta D^T (y - D a1) - eta lambda);  result D1 a2

    Args:
        y: tokens (..., d).
        dictionary, decoder: D and D1, (d, m) with m > d.
        step_size: eta.
        sparsity: lambda.
        at_once: as in `add_product`.
    Returns: (..., d), of either sign.
    """
    shift = step_size * sparsity
    code = F.relu(step_size * F.linear(y, dictionary.t()) - shift)
    residual = add_product(y, code, dictionary, -1.0, at_once)
    code = F.relu(add_product(code, residual, dictionary.t(), step_size, at_once) - shift)
    return F.linear(code, decoder)


def admm_step(
    z: Tensor,
    v: Tensor,
    w: Tensor,
    compressed: Tensor,
    coefficients: Tensor,
    threshold: Tensor,
    gain: Tensor | None = None,
    rescale_z: bool = True,
    rescale_w: bool = True,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """One ADMM iteration of min R^c(Z) + lambda ||V||_1 subject to Z = V, V >= 0.

    Z+ = RMS(a Z + b MSSA(Z) + c (V - W)) * gain
    V+ = ReLU(Z+ + W - tau)
    W+ = RMS(W + Z+ - V+)                             (AoT-ADMM, Eq. 18, Algorithm 1 lines 7 to 9, Appendix B)

    Computed in float32 at least and returned in the precision of z, so that the three states that a network keeps for
    every layer take half of the memory under autocast.

    Args:
        z, v, w: primal, sparse and scaled dual state, (B, N, d) each.
        compressed: MSSA(Z), (B, N, d).
        coefficients: (a, b, c), shape (3,); (1 - eta gamma - eta rho, eta gamma, eta rho) in the paper.
        threshold: tau = lambda / rho, any shape that broadcasts to (d,).
        gain: factors of the rescaled Z, (d,).
        rescale_z, rescale_w: switch the two rescalings.
        eps: added to the mean square.
    Returns: the three new states. Without rescaling W+ = min(W + Z+, tau).
    """
    dtype = z.dtype
    z, v, w, compressed = at_least_float32(z), at_least_float32(v), at_least_float32(w), at_least_float32(compressed)
    a, b, c = coefficients.unbind(0)
    z = a * z + b * compressed + c * (v - w)
    if rescale_z:
        z = rms_rescale(z, gain, eps)
    u = z + w
    v = soft_threshold(u, threshold)
    w = u - v
    if rescale_w:
        w = rms_rescale(w, None, eps)
    return z.to(dtype), v.to(dtype), w.to(dtype)
