"""The loss of each public code on given embeddings, restated from its choices: one function for each choice.

Written for clarity and in plain autograd, to check `conventions` and to compare values with another code's log. The
objectives that train are in `losses`.
"""

import math

import torch
from torch import Tensor

from aotadmm_timm.theory.conventions import form_weights, half_line
from aotadmm_timm.theory.public_codes import Convention, Quadrature


def restated_loss(
    z: Tensor,
    lamb: float,
    convention: Convention,
    directions: Tensor,
    *,
    num_global: int,
    processes: int = 1,
) -> Tensor:
    """The loss of a convention.

    Args:
        z: embeddings (V, B, D), global views first; the rows of all processes, those of one after the other.
        directions: (D, K), unit columns; not used by SACReg, which is taken on the whole space instead of a slice.
        num_global: global views among the V.
        processes: that hold equal shares of the B rows.
    Returns: scalar.
    Raises: UserError for a lambda outside the form; ValueError for a convention with three weights instead of a lambda.
    """
    if convention.form == "weights":
        raise ValueError(f"{convention.name} has weights, no lambda: take `invariance_term` and `regularizer_term`")
    inv_weight, reg_weight = form_weights(convention, lamb)
    inv = invariance_term(z, convention, num_global=num_global)
    reg = regularizer_term(z, convention, directions, num_global=num_global, processes=processes)
    return inv_weight * inv + reg_weight * reg


def invariance_term(z: Tensor, convention: Convention, *, num_global: int) -> Tensor:
    """The part that draws the views of an image together; z (V, B, D)."""
    if convention.target == "pairs":
        first, second = torch.triu_indices(len(z), len(z), offset=1)
        squares = (z[first] - z[second]).square()
    else:
        target = (z[:num_global] if convention.target == "global" else z).mean(0)
        target = target if convention.target_gradient else target.detach()
        squares = (z[num_global:] if convention.predicted == "local" else z) - target
        squares = squares.square()
    return over_dimensions(squares, convention)


def over_dimensions(squares: Tensor, convention: Convention) -> Tensor:
    """Mean over views and images; over dimensions the mean or the sum."""
    per_row = squares.sum(-1) if convention.dims == "sum" else squares.mean(-1)
    return per_row.mean()


def regularizer_term(
    z: Tensor, convention: Convention, directions: Tensor, *, num_global: int, processes: int = 1
) -> Tensor:
    """The part that keeps embeddings from collapsing; arguments as `restated_loss`."""
    if convention.processes == "joint":
        return statistic(sets_of_rows(z, convention, num_global), convention, directions)
    shares = z.chunk(processes, dim=1)
    alone = torch.stack([statistic(sets_of_rows(s, convention, num_global), convention, directions) for s in shares])
    return alone.mean() * (processes if convention.processes == "alone, scaled" else 1)


def sets_of_rows(z: Tensor, convention: Convention, num_global: int) -> Tensor:
    """(S, N, D): the sets of rows that are tested one by one."""
    if convention.tested == "centers":
        return z.mean(0, keepdim=True)
    tested = z[num_global:] if convention.tested == "local" else z
    return tested.flatten(0, 1)[None] if convention.pooling == "pooled" else tested


def statistic(rows: Tensor, convention: Convention, directions: Tensor) -> Tensor:
    """The mean of the statistic over sets of rows (S, N, D), times N if the convention counts them."""
    if convention.statistic == "Epps-Pulley":
        assert convention.quadrature is not None
        value = epps_pulley(rows @ directions, convention.quadrature)
    else:
        value = visreg(rows, directions) if convention.statistic == "VISReg" else spectral(rows)
    return value.mean() * (rows.shape[1] if convention.count else 1)


def epps_pulley(x: Tensor, quadrature: Quadrature) -> Tensor:
    """integral |phi_x(t) - exp(-t^2/2)|^2 exp(-t^2/2) dt of projections x (S, N, K) -> (S, K); no factor N."""
    t, w = (torch.as_tensor(values, dtype=x.dtype) for values in half_line(quadrature))
    gaussian = torch.exp(-t.square() / 2)
    angles = x[..., None] * t
    gap = (angles.cos().mean(1) - gaussian).square() + angles.sin().mean(1).square()
    return gap @ (w * gaussian)


def visreg(rows: Tensor, directions: Tensor) -> Tensor:
    """Center, scale and shape, weights 1: (S, N, D) -> (S,).

    mean mu^2 + mean (sigma - 1)^2 + mean (x_(i) - q_i)^2, x projections of rows standardized by a sigma without
    gradient, sorted over the rows, q_i the normal quantile of i / (N + 1).
    """
    mean = rows.mean(1, keepdim=True)
    centered = rows - mean
    sigma = centered.square().mean(1, keepdim=True).sqrt()
    levels = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype) / (rows.shape[1] + 1)
    quantiles = math.sqrt(2) * torch.erfinv(2 * levels - 1)
    shape = ((centered / sigma.detach()) @ directions).sort(1).values - quantiles[:, None]
    return mean.square().mean((1, 2)) + (sigma - 1).square().mean((1, 2)) + shape.square().mean((1, 2))


def spectral(rows: Tensor, *, eps: float = 1e-4) -> Tensor:
    """SACReg as its authors' code has it, on the whole space: (S, N, D) -> (S,).

    1/2 [ |mu|^2 + tr C - logdet C - D ] / D, C = S + eps I, S with 1 / (N - 1); the paper has 1 / N and eps in the
    determinant only, and so has `losses.sacreg`.
    """
    mean = rows.mean(1)
    centered = rows - mean[:, None]
    dim = rows.shape[-1]
    covariance = centered.mT @ centered / (rows.shape[1] - 1) + eps * torch.eye(dim, dtype=rows.dtype)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (mean.square().sum(-1) + trace - torch.linalg.slogdet(covariance).logabsdet - dim) / (2 * dim)
