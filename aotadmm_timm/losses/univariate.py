"""Tests of one sample against N(0, 1), as losses: x (..., n) -> (...), the sample in the last dimension.

x_(i) is the sorted sample, Phi the normal distribution function, mu and s^2 mean and variance with 1/n. All of them are
finite, with finite gradients, for any finite x: what grows as a power of x is held beyond a bound (`saturate`), and a
spread of zero counts as one millionth.
"""

import math

import torch
from torch import Tensor

from .saturation import largest, saturate
from .sorting import sort_samples


def epps_pulley(x: Tensor) -> Tensor:
    """n * integral |phi_x(t) - exp(-t^2/2)|^2 N(t; 0, 1) dt over the whole line, exactly.

    = 1/n sum_jk exp(-(x_j - x_k)^2 / 2) - sqrt(2) sum_j exp(-x_j^2 / 4) + n / sqrt(3)

    Every pair of samples counts, so time and memory grow as n^2; SIGReg is its quadrature (without the 1 / sqrt(2 pi)
    of the weight) in linear time.
    """
    n = x.shape[-1]
    pairs = torch.exp(-(x[..., :, None] - x[..., None, :]).square() / 2).sum((-2, -1))
    return pairs / n - math.sqrt(2) * torch.exp(-x.square() / 4).sum(-1) + n / math.sqrt(3)


def cramer_von_mises(x: Tensor) -> Tensor:
    """1/(12 n) + sum_i (Phi(x_(i)) - (2i - 1)/(2n))^2; 1/6 expected at N(0, 1)."""
    n = x.shape[-1]
    return 1 / (12 * n) + (torch.special.ndtr(sort_samples(x)) - _ranks(x, -0.5) / n).square().sum(-1)


def watson(x: Tensor) -> Tensor:
    """Cramer-von Mises without the part that a rotation of the uniform circle changes: - n (mean Phi(x) - 1/2)^2.

    It sees little of a shift, for which the statistic was not made.
    """
    return cramer_von_mises(x) - x.shape[-1] * (torch.special.ndtr(x).mean(-1) - 0.5).square()


def anderson_darling(x: Tensor) -> Tensor:
    """-n - 1/n sum_i (2i - 1) [ln Phi(x_(i)) + ln Phi(-x_(n+1-i))]; 1 expected at N(0, 1).

    Cramer-von Mises with the tails weighted up. Beyond |x| = 100 it is held: there the gradient of torch's log_ndtr
    loses its digits.
    """
    n = x.shape[-1]
    x, odd = sort_samples(saturate(x, 100.0)), 2 * _ranks(x, -0.5)
    below, above = torch.special.log_ndtr(x), torch.special.log_ndtr(-x)
    return -n - (odd * below + (2 * n - odd) * above).mean(-1)


def shapiro_francia(x: Tensor) -> Tensor:
    """1 - corr(x_(i), m_i)^2 with m_i = Phi^-1((i - 3/8) / (n + 1/4)), the expected order statistics (Blom).

    Blind to location and scale: it cannot stop collapse alone.
    """
    scores = torch.special.ndtri(_ranks(x, -0.375) / (x.shape[-1] + 0.25))
    return 1 - (sort_samples(_standardized(x)) * scores).mean(-1).square() / scores.square().mean()


def jarque_bera(x: Tensor) -> Tensor:
    """n/6 (skewness^2 + (kurtosis - 3)^2 / 4); 2 expected at N(0, 1) for large n.

    Blind to location and scale: it cannot stop collapse alone.
    """
    y = _standardized(x)
    squares = y.square()
    return x.shape[-1] / 6 * ((squares * y).mean(-1).square() + (squares.square().mean(-1) - 3).square() / 4)


def vcreg(x: Tensor) -> Tensor:
    """n mu^2 / s^2 + (n - 1) (s^2 - 1)^2 / 2; about 2 expected at N(0, 1).

    The likelihood-ratio terms of mean and variance. Below s^2 = 1e-6 that stands in for s^2 under mu^2.
    """
    n, x = x.shape[-1], saturate(x, largest(x.dtype, 4))
    mean = x.mean(-1)
    variance = (x - mean[..., None]).square().mean(-1)
    return n * mean.square() / variance.clamp_min(_FLOOR) + (n - 1) / 2 * (variance - 1).square()


def extended_jarque_bera(x: Tensor) -> Tensor:
    """`jarque_bera` + `vcreg`: all four first moments, so location and scale too."""
    return jarque_bera(x) + vcreg(x)


def moments(x: Tensor, *, order: int = 4) -> Tensor:
    """sum over k = 1..order of w_k (mean x^k - E N^k)^2, E N^k = (k - 1)!! for even k, 0 for odd.

    w_k = 1 / var(N^k), so that each term has the expectation 1/n at N(0, 1). The higher the order, the lower the bound
    beyond which x is held: 7,000 for 4, 370 for 6, 84 for 8 in float32.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    x = saturate(x, largest(x.dtype, 2 * order))
    power, total = torch.ones_like(x), x.new_zeros(x.shape[:-1])
    for k in range(1, order + 1):
        power = power * x
        expected = _gaussian_moment(k)
        total = total + (power.mean(-1) - expected).square() / (_gaussian_moment(2 * k) - expected**2)
    return total


def vasicek(x: Tensor) -> Tensor:
    """KL divergence of the sample from N(0, 1) with Vasicek's estimate of its entropy by spacings.

    1/2 ln(2 pi) + mean x^2 / 2 - 1/n sum_i ln(n / (2m) (x_(i+m) - x_(i-m))), indices held at the ends, m = sqrt(n)
    rounded. Below a spacing of 1e-4 the logarithm goes on as its tangent, with a gradient of 1e4.
    """
    n = x.shape[-1]
    window = math.floor(math.sqrt(n) + 0.5)
    ordered = sort_samples(saturate(x, largest(x.dtype, 2)))
    index = torch.arange(n, device=x.device)
    upper, lower = (index + window).clamp_max(n - 1), (index - window).clamp_min(0)
    entropy = _tangent_log(ordered[..., upper] - ordered[..., lower]).mean(-1) + math.log(n / (2 * window))
    return math.log(2 * math.pi) / 2 + ordered.square().mean(-1) / 2 - entropy


_FLOOR = 1e-6


def _ranks(x: Tensor, shift: float) -> Tensor:
    """1..n + shift, in x's precision."""
    return torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device) + shift


def _standardized(x: Tensor) -> Tensor:
    """(x - mu) / s. To divide by the largest entry first changes neither value nor gradient, and no square overflows.

    A spread below 1e-6 of it (or of 1, if that is larger) counts as that: float32 has no more digits.
    """
    x = x / x.detach().abs().amax(-1, keepdim=True).clamp_min(1)
    centred = x - x.mean(-1, keepdim=True)
    return centred * centred.square().mean(-1, keepdim=True).clamp_min(_FLOOR**2).rsqrt()


def _gaussian_moment(order: int) -> int:
    return 0 if order % 2 else math.prod(range(1, order, 2))


def _tangent_log(x: Tensor, floor: float = 1e-4) -> Tensor:
    """ln x, below the floor its tangent there: ln(floor) + (x - floor) / floor."""
    held = x.clamp_min(floor)
    return held.log() + (x - held) / floor
