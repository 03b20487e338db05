"""Sorted samples against a target: the quantiles of a Gaussian, or a sample of a sparse, non-negative distribution."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError

from .saturation import largest, saturate
from .slicing import Sliced, gather_rows
from .sorting import sort_samples


def quantile_match(x: Tensor) -> Tensor:
    """mean_i (x_(i) - q_i)^2 with q_i = Phi^-1(i / (n + 1)): W_2^2 to N(0, 1) on a grid   (VISReg's sorted term).

    x (..., n) -> (...). Below the expectation of x^2 by the q_i's mean square, which is under 1 for finite n.
    """
    n = x.shape[-1]
    quantiles = torch.special.ndtri(torch.arange(1, n + 1, dtype=x.dtype, device=x.device) / (n + 1))
    return sorted_match(x, quantiles)


def sorted_match(x: Tensor, target: Tensor) -> Tensor:
    """mean_i (x_(i) - target_i)^2, W_2^2 between samples of equal size; x (..., n), target (..., n) sorted -> (...)."""
    x = saturate(x, largest(x.dtype, 2))
    return (sort_samples(x) - target).square().mean(-1)


def generalized_normal_scale(p: float) -> float:
    """The sigma of GN_p(0, sigma) with unit variance: sqrt(Gamma(1/p) / Gamma(3/p)) / p^(1/p)."""
    return math.sqrt(math.gamma(1 / p) / math.gamma(3 / p)) / p ** (1 / p)


def rectified_samples(
    count: int, dim: int, *, p: float = 1.0, mean: float = 0.0, scale: float | None = None, seed: int = 0, step: int = 0
) -> Tensor:
    """ReLU(mean + scale x), x independent with density ~ exp(-|x|^p / p)   (Rectified LpJEPA, arXiv:2602.01456).

    Args:
        p: 1 for Laplace, 2 for Gaussian; the smaller, the heavier the tail.
        mean: the smaller, the more zeros: half of the entries at 0.
        scale: by default the one of unit variance before the rectification.
    Returns: (count, dim) float32 on the CPU, a function of the arguments.
    """
    # (|x|^p / p) has a Gamma(1/p) distribution.
    random = np.random.default_rng(np.random.SeedSequence((seed, step, 1)))
    size = (p * random.standard_gamma(1 / p, (count, dim), dtype=np.float32)) ** (1 / p)
    sign = np.where(random.random((count, dim), dtype=np.float32) < 0.5, -1, 1).astype(np.float32)
    factor = generalized_normal_scale(p) if scale is None else scale
    return torch.from_numpy(sign * size).mul_(factor).add_(mean).relu_()


class RDMReg(Sliced):
    """Sliced W_2^2 between ReLU(z) and a sample of as many rows of ReLU(mean + scale GN_p)   (arXiv:2602.01456).

    `RDMReg()(z, step)`: z (..., N, D) -> scalar. The features become sparse, with a known share of exact zeros, and of
    maximal entropy given their mean p-norm. The sample is new at every step, the same for all views and on all ranks.

    Args:
        p, mean, scale: of the target, see `rectified_samples`. The paper recommends p = 1, and means from -3 to 1.
        positive: z is non-negative as it is (the V of AoT-ADMM, a projector that ends in ReLU): it is not rectified
            here. Warns, once, if it has a negative entry.
        num_slices, seed, directions: as in `Sliced`.
    Differs from the authors' code: directions and sample are a function of (seed, step), the sample is shared by views.
    """

    def __init__(
        self,
        num_slices: int = 256,
        *,
        p: float = 1.0,
        mean: float = 0.0,
        scale: float | None = None,
        positive: bool = False,
        seed: int = 0,
        directions: str = "iid",
    ) -> None:
        super().__init__(sorted_match, num_slices, seed=seed, directions=directions)
        if p <= 0 or (scale is not None and scale <= 0):
            raise UserError(f"rdmreg needs p > 0 and scale > 0, got p={p}, scale={scale}")
        self.p, self.mean, self.scale, self.positive = p, mean, scale, positive
        self._checked = not positive

    def extra_repr(self) -> str:
        return f"p={self.p}, mean={self.mean}, scale={self.scale}, positive={self.positive}, {super().extra_repr()}"

    def forward(self, z: Tensor, step: int) -> Tensor:
        if not self._checked:
            self._checked = True
            if bool((z < 0).any()):
                warnings.warn("rdmreg(positive=True) was given negative features: they are not rectified", stacklevel=2)
        rows = gather_rows(z if self.positive else z.relu(), self.min_rows)
        target = rectified_samples(
            *rows.shape[1:], p=self.p, mean=self.mean, scale=self.scale, seed=self.seed, step=step
        )
        return self.over_slices(rows, step, target.to(rows))
