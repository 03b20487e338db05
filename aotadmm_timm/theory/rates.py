"""Coding rate and compression rate, with their exact gradients (AoT-ADMM, Eqs. 2, 6 and 7).

The paper writes tokens as columns, Z (d, N). Here they are rows, z (..., N, d), as a network holds them: every formula
below is the transposed one, and its value the same.
"""

from __future__ import annotations

import torch
from torch import Tensor


def coding_rate(z: Tensor, *, eps: float) -> Tensor:
    """R(Z) = 1/2 logdet(I_d + d / (N eps^2) Z^T Z)   (Eq. 2, with tokens as rows)

    Args:
        z: tokens (..., N, d); leading dimensions are separate sets.
        eps: coding precision; it is squared inside, as in the paper.
    Returns: (...), in nats, float32 at least. Differentiable; the gradient is `coding_rate_gradient`.
    Raises: ValueError if z has fewer than two dimensions or no token, or eps is not positive.
    """
    z, scale = _prepare(z, eps)
    n, d = z.shape[-2:]
    with torch.autocast(z.device.type, enabled=False):
        gram = z.mT @ z if d <= n else z @ z.mT  # the same determinant, by Sylvester: take the smaller
        identity = torch.eye(min(n, d), dtype=z.dtype, device=z.device)
        factor = torch.linalg.cholesky(identity + scale * gram)
        return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def coding_rate_gradient(z: Tensor, *, eps: float) -> Tensor:
    """dR/dz = a z (I_d + a z^T z)^-1,  a = d / (N eps^2); z (..., N, d) -> (..., N, d). Arguments as `coding_rate`."""
    z, scale = _prepare(z, eps)
    n, d = z.shape[-2:]
    with torch.autocast(z.device.type, enabled=False):
        identity = torch.eye(min(n, d), dtype=z.dtype, device=z.device)
        if n < d:  # the same product, pushed through: invert the smaller matrix
            return scale * torch.linalg.solve(identity + scale * (z @ z.mT), z)
        return scale * torch.linalg.solve(identity + scale * (z.mT @ z), z, left=False)


def compression_rate(z: Tensor, bases: Tensor, *, eps: float) -> Tensor:
    """R^c(Z | U) = sum_k 1/2 logdet(I_p + p / (N eps^2) (Z U_k)^T Z U_k)   (Eqs. 6 and 7, with tokens as rows)

    Args:
        z: tokens (..., N, d).
        bases: (K, d, p), one basis a head. Orthonormal columns in the paper; not required, and not imposed, here.
        eps: coding precision, squared inside.
    Returns: (...), in nats. Raises: ValueError if shapes do not fit (both are named).
    """
    return coding_rate(project(z, bases), eps=eps).sum(-1)


def compression_rate_gradient(z: Tensor, bases: Tensor, *, eps: float) -> Tensor:
    """dR^c/dz = sum_k a z U_k (I_p + a (z U_k)^T z U_k)^-1 U_k^T,  a = p / (N eps^2)

    What Eq. (11) approximates by gamma [Z - MSSA(Z)]. z (..., N, d) -> (..., N, d). Arguments as `compression_rate`.
    """
    per_head = coding_rate_gradient(project(z, bases), eps=eps)
    with torch.autocast(z.device.type, enabled=False):
        return (per_head @ bases.to(per_head.dtype).mT).sum(-3)


def variational_compression_rate(w: Tensor, membership: Tensor) -> Tensor:
    """1/2 sum_k n_k / N sum_p log(1 + 1 / n_k sum_n Pi_nk w_nkp^2),  n_k = sum_n Pi_nk   (ToST, arXiv:2412.17810)

    An upper bound of the compression rate of tokens that belong to heads in parts: the logdet of a head's covariance is
    at most that of its diagonal, which takes no products of pairs of tokens. What token statistics self-attention
    descends.

    Args:
        w: tokens in each head's subspace (..., N, K, p), their scale taken to contain d / eps^2.
        membership: Pi (..., N, K), the share of each token that belongs to each head.
    Returns: (...), in nats, float32 at least. Raises: ValueError if shapes do not fit (both are named).
    """
    if w.ndim < 3 or w.shape[:-1] != membership.shape:
        raise ValueError(
            f"tokens (..., N, K, p) and membership (..., N, K) do not fit: {tuple(w.shape)}, {tuple(membership.shape)}"
        )
    dtype = torch.promote_types(w.dtype, torch.float32)
    share = membership.to(dtype).unsqueeze(-1)
    count = share.sum(-3)
    moment = (share * w.to(dtype).square()).sum(-3) / count.clamp_min(torch.finfo(dtype).tiny)
    return (count * moment.log1p()).sum((-2, -1)) / (2 * w.shape[-3])


def _prepare(z: Tensor, eps: float) -> tuple[Tensor, float]:
    if z.ndim < 2 or z.shape[-2] == 0 or z.shape[-1] == 0:
        raise ValueError(f"tokens must be (..., N, d) with N, d >= 1, got {tuple(z.shape)}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    n, d = z.shape[-2:]
    return z if z.dtype == torch.float64 else z.float(), d / (n * eps**2)


def project(z: Tensor, bases: Tensor) -> Tensor:
    """The tokens in each head's subspace, z U_k: z (..., N, d), bases (K, d, p) -> (..., K, N, p)."""
    if z.ndim < 2 or bases.ndim != 3 or bases.shape[1] != z.shape[-1]:
        raise ValueError(
            f"tokens (..., N, d) and bases (K, d, p) do not fit: {tuple(z.shape)} and {tuple(bases.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(z.dtype, bases.dtype), torch.float32)
    with torch.autocast(z.device.type, enabled=False):
        joined = bases.to(dtype).transpose(0, 1).flatten(1)  # all heads in one product
        return (z.to(dtype) @ joined).unflatten(-1, (len(bases), -1)).transpose(-3, -2)
