"""Theorem 1 in training: its normalisation, and the coding rate in SIGReg's place."""

from __future__ import annotations

import torch
from torch import Tensor

from aotadmm_timm.distributed import all_reduce_sum, total_count
from aotadmm_timm.theory.expansion import coding_rate_gap, covariance_constant, local_ratio


def normalize_energy(z: Tensor) -> Tensor:
    """z with mean 0 and tr(Sigma) = d, the two conditions of Theorem 1; over all ranks, differentiable.

    Args:
        z: embeddings (..., N, d); leading dimensions (views) are normalised one by one.
    Returns: (z - mean) * sqrt(d / tr Sigma), the same shape, float32 at least. A set without any spread becomes zero.

    The invariance term must see the result too: the regulariser no longer feels the scale of z, so shrinking z would
    otherwise make the views agree for free.
    """
    _check(z)
    z = z if z.dtype == torch.float64 else z.float()
    count = total_count(z.shape[-2], z.device)
    centred = z - all_reduce_sum(z.sum(-2, keepdim=True)) / count
    energy = all_reduce_sum(centred.square().sum((-2, -1), keepdim=True)) / (count * z.shape[-1])
    return centred * energy.clamp_min(torch.finfo(z.dtype).tiny).rsqrt()


def coding_rate_regularizer(z: Tensor, *, eps: float = 0.5, num_knots: int = 17, t_max: float = 3.0) -> Tensor:
    """The coding rate in SIGReg's place: N * 8 C_w / (theta^2 d (d + 2)) * (R(I) - R(Sigma))   (Eqs. A.1 and A.23)

    Sigma is the second moment of z over all ranks. The factor makes the value, to leading order around Sigma = I, that
    of the covariance part of `sigreg` on the same N rows: a SIGReg weight keeps its strength.

    Args:
        z: embeddings (..., N, d) that satisfy Theorem 1 (`normalize_energy`). Without that R has no maximum.
        eps: coding precision.
        num_knots, t_max: the quadrature of the SIGReg that is replaced.
    Returns: scalar, the mean over leading dimensions; 0 at Sigma = I, positive elsewhere under the two conditions.
    """
    _check(z)
    d, count = z.shape[-1], total_count(z.shape[-2], z.device)
    ratio = local_ratio(d, eps=eps, c_w=covariance_constant(num_knots, t_max))
    return count * ratio * coding_rate_gap(_second_moment(z, count), eps=eps).mean()


def _second_moment(z: Tensor, count: int) -> Tensor:
    """Z^T Z / N over all ranks, (..., d, d)."""
    with torch.autocast(z.device.type, enabled=False):
        z = z if z.dtype == torch.float64 else z.float()
        return all_reduce_sum(z.mT @ z) / count


def _check(z: Tensor) -> None:
    if z.ndim < 2 or z.shape[-2] == 0:
        raise ValueError(f"embeddings must be (..., N, d) with N >= 1, got {tuple(z.shape)}")
