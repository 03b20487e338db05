"""SIGReg's slicer with a test of two moments, and its limit of many slices: VICReg's terms (LeJEPA, section 5.2 and
B.14).

T = mean^2 + (std - 1)^2 of each projection. Over all directions a of the unit sphere, to leading order around Sigma =
I,

    E_a T = |mu|^2 / d + 1/4 E_a[(a^T (Sigma - I) a)^2] = |mu|^2 / d + (tr(A)^2 + 2 |A|_F^2) / (4 d (d + 2)),  A = Sigma
    - I

whose |A|_F^2 is the sum of VICReg's two: squared off-diagonal covariances, and variances that should be 1.
"""

from __future__ import annotations

from torch import Tensor

from aotadmm_timm.theory.expansion import covariance_part


def mean_and_spread(x: Tensor) -> Tensor:
    """mean^2 + (std - 1)^2 of samples x (..., n) -> (...), the standard deviation with 1/n."""
    mean = x.mean(-1)
    variance = (x - mean[..., None]).square().mean(-1)
    return mean.square() + (variance.clamp_min(1e-12).sqrt() - 1).square()


def sliced_moments(mu: Tensor, sigma: Tensor, directions: Tensor) -> Tensor:
    """The mean of T over the directions (d, K) for a distribution of mean mu (d,) and covariance sigma (d, d)."""
    variance = (directions * (sigma @ directions)).sum(0)
    return (mu @ directions).square().mean() + (variance.clamp_min(1e-12).sqrt() - 1).square().mean()


def moments_limit(mu: Tensor, sigma: Tensor) -> Tensor:
    """Of `sliced_moments` for all directions, to leading order around mean 0 and covariance I."""
    return mu.square().sum() / len(mu) + covariance_part(sigma, c_w=0.25)
