"""Tests of a whole batch against N(0, I), as losses: z (N, D) -> scalar, no slices.

Kernel tests hold one number for every pair of rows: time and memory grow as N^2. None of them whitens z: a whitened
batch looks the same whatever its covariance, so the test of the textbooks would not see collapse.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from aotadmm_timm.theory.expansion import covariance_constant
from aotadmm_timm.theory.objective import coding_rate_regularizer

from .saturation import largest, saturate
from .slicing import gather_rows
from .spectral import sacreg


class WholeBatch(nn.Module):
    """A statistic (N, D) -> scalar of the rows of all ranks: set by set (view by view), then the mean.

    `WholeBatch(statistic)(z, step)`: z (..., N, D) -> scalar; every rank computes it on all rows, so value and gradient
    (once averaged over ranks) are those of one process. With fewer than `min_rows` rows a UserError.
    """

    def __init__(self, statistic: Callable[[Tensor], Tensor], *, min_rows: int = 1) -> None:
        super().__init__()
        self.statistic, self.min_rows = statistic, min_rows

    def extra_repr(self) -> str:
        return getattr(self.statistic, "__name__", repr(self.statistic))

    def forward(self, z: Tensor, step: int) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return torch.stack([self.statistic(rows) for rows in gather_rows(z, self.min_rows)]).mean()


def bhep(z: Tensor, *, beta: float = 1.0) -> Tensor:
    """Epps-Pulley in D dimensions, exactly   (Baringhaus, Henze, Epps, Pulley)

    1/N sum_jk exp(-b^2 |z_j - z_k|^2 / 2) - 2 (1 + b^2)^(-D/2) sum_j exp(-b^2 |z_j|^2 / (2 (1 + b^2)))
    + N (1 + 2 b^2)^(-D/2),  b = beta: the characteristic functions' distance under a weight N(t; 0, b^2 I).

    In many dimensions two Gaussian rows are sqrt(2 D) apart: with b = 1 it then sees single rows only. b = D^(-1/2),
    which is N times `mmd`, does not.
    """
    n, d = z.shape
    z = saturate(z, largest(z.dtype, 2))
    b2 = beta**2
    pairs = torch.exp(-b2 / 2 * _squared_distances(z)).sum() / n
    singles = torch.exp(-b2 / (2 * (1 + b2)) * z.square().sum(-1)).sum()
    return pairs - 2 * (1 + b2) ** (-d / 2) * singles + n * (1 + 2 * b2) ** (-d / 2)


def henze_zirkler(z: Tensor) -> Tensor:
    """`bhep` with b = ((2 D + 1) N / 4)^(1 / (D + 4)) / sqrt(2), without the whitening that makes a test of it."""
    n, d = z.shape
    return bhep(z, beta=((2 * d + 1) * n / 4) ** (1 / (d + 4)) / math.sqrt(2))


def mmd(z: Tensor, *, bandwidth: float | None = None) -> Tensor:
    """Squared maximum mean discrepancy to N(0, I), kernel exp(-|x - y|^2 / (2 h^2)), the target integrated exactly.

    = `bhep`(beta = 1/h) / N; h is sqrt(D) by default. Not negative (the V statistic).
    """
    h = math.sqrt(z.shape[1]) if bandwidth is None else bandwidth
    return bhep(z, beta=1 / h) / len(z)


def ksd(z: Tensor, *, bandwidth: float | None = None, unbiased: bool = False) -> Tensor:
    """Squared kernel Stein discrepancy to N(0, I), kernel k = exp(-|x - y|^2 / (2 h^2)), h = sqrt(D) by default.

    Mean over pairs of u(x, y) = k [x.y - |x - y|^2 / h^2 + D / h^2 - |x - y|^2 / h^4]; with `unbiased` over pairs of
    different rows (the U statistic, which can be negative; two rows at least).
    """
    n, d = z.shape
    h2 = d if bandwidth is None else bandwidth**2
    z = saturate(z, largest(z.dtype, 2))
    squares = _squared_distances(z)
    u = torch.exp(-squares / (2 * h2)) * (z @ z.mT + d / h2 - squares * (1 / h2 + 1 / h2**2))
    if not unbiased:
        return u.mean()
    if n < 2:
        raise ValueError(f"the unbiased KSD needs at least 2 rows, got {n}")
    return (u.sum() - u.diagonal().sum()) / (n * (n - 1))


def variance_hinge(z: Tensor, *, eps: float = 1e-4) -> Tensor:
    """mean over dimensions of max(0, 1 - sqrt(var + eps)), var with 1/(N - 1)   (VICReg, arXiv:2105.04906, Eq. 1)"""
    z = saturate(z, largest(z.dtype, 2))
    return (1 - (z.var(0) + eps).sqrt()).relu().mean()


def covariance_penalty(z: Tensor) -> Tensor:
    """Sum of the squared off-diagonal entries of the covariance / D, with 1/(N - 1)   (VICReg, Eqs. 3 and 4)"""
    z = saturate(z, largest(z.dtype, 4))
    centred = z - z.mean(0)
    covariance = centred.mT @ centred / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]


def vicreg(z: Tensor, *, variance: float = 1.0, covariance: float = 0.04) -> Tensor:
    """`variance` * `variance_hinge` + `covariance` * `covariance_penalty`, in the paper's ratio of 25 to 1."""
    return variance * variance_hinge(z) + covariance * covariance_penalty(z)


def scaled_sacreg(z: Tensor, *, eps: float = 1e-4) -> Tensor:
    """`sacreg` N * 8 C_w / (D (D + 2)) times; N rows of embeddings that need no normalization.

    The factor makes its value, to leading order around N(0, I) in directions that keep the trace, that of the
    covariance part of `sigreg` on the same rows, as Eq. (A.23) of AoT-ADMM does for the coding rate: a SIGReg weight
    keeps its strength. Keep N at 4 D or more. Entries count as 1e4 at most: with larger ones eps would be lost.
    """
    n, d = z.shape
    return n * 8 * covariance_constant() / (d * (d + 2)) * sacreg(saturate(z, 1e4), eps=eps)


class CodingRate(nn.Module):
    """`theory.objective.coding_rate_regularizer` of z (..., N, D), centred and with tr Sigma = D; over all ranks."""

    def __init__(self, *, eps: float = 0.5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, z: Tensor, step: int) -> Tensor:
        # Of a nearly collapsed batch the matrix inside the determinant is too ill-conditioned for float32.
        exact = z.to(torch.float64 if z.device.type != "mps" else torch.float32)
        value = coding_rate_regularizer(saturate(exact, 1e4), eps=self.eps)
        return value.to(torch.float64 if z.dtype == torch.float64 else torch.float32)


def _squared_distances(z: Tensor) -> Tensor:
    """(N, N). From a point amid the rows rather than from the origin: what they share would cost digits."""
    z = z - z.detach().mean(0)
    squares = z.square().sum(-1)
    return (squares[:, None] + squares - 2 * z @ z.mT).clamp_min(0)
