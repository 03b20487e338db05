"""How far embeddings are expanded, in the two languages of Theorem 1 of AoT-ADMM: SIGReg's and the coding rate's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aotadmm_timm.losses import sigreg
from aotadmm_timm.theory.expansion import covariance_constant, covariance_part
from aotadmm_timm.theory.rates import coding_rate


@torch.no_grad()
def expansion_diagnostics(
    z: Tensor, directions: Tensor, *, eps: float = 0.5, num_knots: int = 17, t_max: float = 3.0
) -> dict[str, float]:
    """How far embeddings are expanded, in the two languages of Theorem 1; this process only.

    Args:
        z: embeddings (..., N, d); leading dimensions (views) are measured one by one and averaged.
        directions: (d, K) unit columns, for SIGReg.
        eps: coding precision of R.
    Returns:
        coding_rate: R of Eq. (2), in nats, of the centred embeddings, as Sigma is: a common offset is no expansion.
        coding_rate_isotropic: R(I), what it is at most once tr Sigma = d.
        sigreg: SIGReg's value, with its factor N.
        sigreg_covariance: L2 of Eq. (A.6) for the covariance of z, times N, the mean over all directions.
        sigreg_rest: sigreg - sigreg_covariance: mean, skewness, higher orders. L2 is the quadratic term around
            Sigma = I; far from there it exceeds SIGReg and the rest is negative. At N(0, I) sampling alone gives
            sigreg 1.05, of which the covariance has 2 C_w = .24.
        trace_per_dim: tr Sigma / d. Theorem 1 holds it at 1; it shows whether R grows by spreading or by scale.
    """
    if z.ndim < 2 or z.shape[-2] == 0:
        raise ValueError(f"embeddings must be (..., N, d) with N >= 1, got {tuple(z.shape)}")
    z = z if z.dtype == torch.float64 else z.float()
    n, d = z.shape[-2:]
    centred = z - z.mean(-2, keepdim=True)
    sigma = centred.mT @ centred / n
    value = sigreg(z, directions.to(z), num_knots=num_knots, t_max=t_max).item()
    second = n * covariance_part(sigma, c_w=covariance_constant(num_knots, t_max)).mean().item()
    return {
        "coding_rate": coding_rate(centred, eps=eps).mean().item(),
        "coding_rate_isotropic": d / 2 * math.log1p(d / eps**2),
        "sigreg": value,
        "sigreg_covariance": second,
        "sigreg_rest": value - second,
        "trace_per_dim": (centred.square().sum((-2, -1)) / (n * d)).mean().item(),
    }
