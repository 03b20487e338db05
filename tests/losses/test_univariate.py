"""Every test of one sample against a second source in float64: scipy where it has it, else a loop over the formula."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from aotadmm_timm.losses import sigreg
from aotadmm_timm.losses.univariate import (
    anderson_darling,
    cramer_von_mises,
    epps_pulley,
    extended_jarque_bera,
    jarque_bera,
    moments,
    shapiro_francia,
    vasicek,
    vcreg,
    watson,
)

Sample = list[float]


def by_loop_epps_pulley(x: Sample) -> float:
    n = len(x)
    pairs = sum(math.exp(-((a - b) ** 2) / 2) for a in x for b in x)
    return pairs / n - math.sqrt(2) * sum(math.exp(-a * a / 4) for a in x) + n / math.sqrt(3)


def by_loop_watson(x: Sample) -> float:
    n, u = len(x), sorted(stats.norm.cdf(x))
    w2 = 1 / (12 * n) + sum((u[i] - (2 * i + 1) / (2 * n)) ** 2 for i in range(n))
    return w2 - n * (sum(u) / n - 0.5) ** 2


def by_loop_anderson_darling(x: Sample) -> float:
    n, x = len(x), sorted(x)
    return (
        -n - sum((2 * i - 1) * (stats.norm.logcdf(x[i - 1]) + stats.norm.logsf(x[n - i])) for i in range(1, n + 1)) / n
    )


def by_scipy_shapiro_francia(x: Sample) -> float:
    n = len(x)
    scores = stats.norm.ppf([(i - 3 / 8) / (n + 1 / 4) for i in range(1, n + 1)])
    return 1 - stats.pearsonr(sorted(x), scores).statistic ** 2


def by_loop_vcreg(x: Sample) -> float:
    n = len(x)
    mean = sum(x) / n
    variance = sum((a - mean) ** 2 for a in x) / n
    return n * mean**2 / variance + (n - 1) * (variance - 1) ** 2 / 2


def by_scipy_moments(x: Sample) -> float:
    total = 0.0
    for k in range(1, 7):
        weight = 1 / (stats.norm.moment(2 * k) - stats.norm.moment(k) ** 2)
        total += weight * (sum(a**k for a in x) / len(x) - stats.norm.moment(k)) ** 2
    return total


def by_scipy_vasicek(x: Sample) -> float:
    entropy = stats.differential_entropy(x, method="vasicek")
    return math.log(2 * math.pi) / 2 + sum(a * a for a in x) / len(x) / 2 - entropy


SECOND: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Sample], float]]] = {
    "epps-pulley": (epps_pulley, by_loop_epps_pulley),
    "cramer-von-mises": (cramer_von_mises, lambda x: stats.cramervonmises(x, "norm").statistic),
    "watson": (watson, by_loop_watson),
    "anderson-darling": (anderson_darling, by_loop_anderson_darling),
    "shapiro-francia": (shapiro_francia, by_scipy_shapiro_francia),
    "jarque-bera": (jarque_bera, lambda x: stats.jarque_bera(x).statistic),
    "vcreg": (vcreg, by_loop_vcreg),
    "extended": (extended_jarque_bera, lambda x: stats.jarque_bera(x).statistic + by_loop_vcreg(x)),
    "moments": (lambda x: moments(x, order=6), by_scipy_moments),
    "vasicek": (vasicek, by_scipy_vasicek),
}


def samples(n: int) -> Tensor:
    """Four samples along the last dimension: Gaussian, shifted and wide, skewed, with long tails."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(4, n, generator=generator, dtype=torch.float64)
    return torch.stack([x[0], 3 * x[1] + 1, x[2].exp(), x[3] ** 3])


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("n", [7, 50, 101])
def test_second_source(name: str, n: int) -> None:
    """A batch of samples, so one that sorted or summed over another dimension would differ."""
    ours, second = SECOND[name]
    x = samples(n)
    expected = torch.tensor([float(second(sample.tolist())) for sample in x], dtype=torch.float64)
    torch.testing.assert_close(ours(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SECOND)
def test_gradient(name: str) -> None:
    x = (2 * (samples(9) / 2).tanh()).requires_grad_()
    assert torch.autograd.gradcheck(SECOND[name][0], (x,))


def test_the_closed_form_is_the_limit_of_the_quadrature() -> None:
    x = samples(30)
    for sample in x[:3]:
        quadrature = sigreg(sample[:, None], torch.ones(1, 1), num_knots=2001, t_max=12.0) / math.sqrt(2 * math.pi)
        assert float(epps_pulley(sample)) == pytest.approx(float(quadrature), rel=1e-10)


def test_tails_need_the_logarithm_of_the_distribution_function() -> None:
    """Phi(-40) is 0 in double precision, its logarithm -804.6."""
    x = torch.tensor([-40.0, 0.1, 40.0], dtype=torch.float64, requires_grad=True)
    value = anderson_darling(x)
    assert float(value.detach()) == pytest.approx(by_loop_anderson_darling([-40.0, 0.1, 40.0]), rel=1e-10)
    value.backward()
    assert x.grad is not None
    assert float(x.grad[2]) == pytest.approx(math.exp(stats.norm.logpdf(40) - stats.norm.logsf(40)) / 3, rel=1e-6)


@pytest.mark.parametrize("statistic", [shapiro_francia, jarque_bera])
def test_blind_to_location_and_scale(statistic: Callable[[Tensor], Tensor]) -> None:
    x = samples(40)
    torch.testing.assert_close(statistic(1e-3 * x + 5), statistic(x), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(statistic(1e6 * x - 5), statistic(x), rtol=1e-8, atol=1e-8)


def test_watson_sees_less_of_a_shift() -> None:
    x = torch.special.ndtri(torch.linspace(0.01, 0.99, 99, dtype=torch.float64))
    near = x + 0.3  # the integral of phi^2, less the squared mean of phi under phi: a factor 1 - 3 sqrt(3) / (2 pi)
    rise = (watson(near) - watson(x)) / (cramer_von_mises(near) - cramer_von_mises(x))
    assert float(rise) == pytest.approx(1 - math.sqrt(3) / 2, abs=0.02)


@pytest.mark.parametrize(("statistic", "expected", "spread"), [
    (cramer_von_mises, 1 / 6, 0.02), (anderson_darling, 1.0, 0.1), (vcreg, 2.0, 0.25), (watson, 1 / 12, 0.01),
])  # fmt: skip
def test_expectation_at_the_gaussian(statistic: Callable[[Tensor], Tensor], expected: float, spread: float) -> None:
    torch.manual_seed(0)
    assert float(statistic(torch.randn(1000, 200)).mean()) == pytest.approx(expected, abs=spread)


def test_each_moment_counts_alike() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 200, dtype=torch.float64)
    values = [float(moments(x, order=k).mean()) * 200 for k in range(1, 5)]
    assert values == pytest.approx([1, 2, 3, 4], rel=0.15)
    with pytest.raises(ValueError, match="order must be at least 1, got 0"):
        moments(x, order=0)
