"""Tests of a whole batch against double loops over their formulas, in float64."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from aotadmm_timm.losses import build_regularizer, sacreg
from aotadmm_timm.losses.multivariate import (
    bhep,
    covariance_penalty,
    henze_zirkler,
    ksd,
    mmd,
    scaled_sacreg,
    variance_hinge,
    vicreg,
)
from aotadmm_timm.losses.univariate import epps_pulley
from aotadmm_timm.theory.expansion import covariance_part

BATCHES = [(12, 3, 1.0), (9, 5, 2.5), (2, 4, 0.3)]


def batch(n: int, d: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return scale * torch.randn(n, d, generator=generator, dtype=torch.float64) + 0.2


def square(a: Tensor, b: Tensor) -> float:
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


def by_loop_bhep(z: Tensor, beta: float) -> float:
    (n, d), b2, zero = z.shape, beta**2, torch.zeros(z.shape[1])
    pairs = sum(math.exp(-b2 * square(x, y) / 2) for x, y in product(z, z))
    singles = sum(math.exp(-b2 * square(x, zero) / (2 * (1 + b2))) for x in z)
    return pairs / n - 2 * (1 + b2) ** (-d / 2) * singles + n * (1 + 2 * b2) ** (-d / 2)


def by_loop_ksd(z: Tensor, h: float, unbiased: bool) -> float:
    n, d = z.shape
    total = 0.0
    for (i, x), (j, y) in product(enumerate(z), enumerate(z)):
        if unbiased and i == j:
            continue
        s, dot = square(x, y), sum(float(a) * float(b) for a, b in zip(x, y, strict=True))
        total += math.exp(-s / (2 * h**2)) * (dot - s / h**2 + d / h**2 - s / h**4)
    return total / (n * (n - 1) if unbiased else n * n)


@pytest.mark.parametrize(("n", "d", "scale"), BATCHES)
def test_kernel_tests(n: int, d: int, scale: float) -> None:
    z = batch(n, d, scale)
    for beta in (0.5, 1.0, 2.0):
        assert float(bhep(z, beta=beta)) == pytest.approx(by_loop_bhep(z, beta), rel=1e-10, abs=1e-10)
    beta = 2**-0.5 * ((2 * d + 1) * n / 4) ** (1 / (d + 4))
    assert float(henze_zirkler(z)) == pytest.approx(by_loop_bhep(z, beta), rel=1e-10, abs=1e-10)
    assert float(mmd(z)) == pytest.approx(by_loop_bhep(z, d**-0.5) / n, rel=1e-10, abs=1e-10)
    for unbiased in (False, True):
        for h in (1.0, d**0.5):
            expected = by_loop_ksd(z, h, unbiased)
            assert float(ksd(z, bandwidth=h, unbiased=unbiased)) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_bhep_by_integration() -> None:
    """The integral that it is, of the distance of characteristic functions: this fixes the exponents' centers."""
    z, beta = batch(5, 1, 1.5), 0.8
    t = torch.linspace(-12, 12, 48001, dtype=torch.float64)
    weight = torch.exp(-t.square() / (2 * beta**2)) / (beta * math.sqrt(2 * math.pi))
    gap = (t * z).cos().mean(0) - torch.exp(-t.square() / 2), (t * z).sin().mean(0)
    integral = len(z) * torch.trapezoid(weight * (gap[0].square() + gap[1].square()), t)
    assert float(bhep(z, beta=beta)) == pytest.approx(float(integral), rel=1e-10)
    assert float(bhep(z)) == pytest.approx(float(epps_pulley(z[:, 0])), rel=1e-10)


def test_mmd_by_sampling() -> None:
    """With the target sampled instead of integrated."""
    z, h = batch(40, 3, 1.3), 1.7
    y = torch.randn(2000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(a, b).square() / (2 * h**2))

    yy = (kernel(y, y).sum() - len(y)) / (len(y) * (len(y) - 1))
    sampled = kernel(z, z).mean() - 2 * kernel(z, y).mean() + yy
    assert float(mmd(z, bandwidth=h)) == pytest.approx(float(sampled), abs=4e-3)


def test_ksd_is_zero_in_expectation_at_the_gaussian() -> None:
    torch.manual_seed(1)
    values = torch.stack([ksd(torch.randn(60, 4, dtype=torch.float64), unbiased=True) for _ in range(400)])
    assert abs(float(values.mean())) < 3 * float(values.std()) / 20
    assert float(ksd(2 * torch.randn(60, 4, dtype=torch.float64), unbiased=True)) > 5 * float(values.std())


def test_bhep_does_not_whiten() -> None:
    """The test of the textbooks would not change; a loss must."""
    z = batch(50, 3, 1.0)
    assert float(henze_zirkler(0.1 * z)) > 3 * float(henze_zirkler(z))


@pytest.mark.parametrize(("n", "d", "scale"), BATCHES)
def test_vicreg(n: int, d: int, scale: float) -> None:
    z = batch(n, d, scale)
    means = [sum(float(z[i, a]) for i in range(n)) / n for a in range(d)]
    covariance = [
        [sum((float(z[i, a]) - means[a]) * (float(z[i, b]) - means[b]) for i in range(n)) / (n - 1) for b in range(d)]
        for a in range(d)
    ]
    hinge = sum(max(0.0, 1 - math.sqrt(covariance[a][a] + 1e-4)) for a in range(d)) / d
    off = sum(covariance[a][b] ** 2 for a in range(d) for b in range(d) if a != b) / d
    assert float(variance_hinge(z)) == pytest.approx(hinge, rel=1e-10, abs=1e-10)
    assert float(covariance_penalty(z)) == pytest.approx(off, rel=1e-10, abs=1e-10)
    assert float(vicreg(z, variance=2.0, covariance=3.0)) == pytest.approx(2 * hinge + 3 * off, rel=1e-10)


def test_sacreg_is_worth_as_much_as_the_covariance_part_of_sigreg() -> None:
    """To leading order around the identity, at equal trace; per set, then the mean."""
    torch.manual_seed(0)
    n, d = 64, 6
    basis = torch.linalg.qr(torch.randn(n, d + 1, dtype=torch.float64) + 1)[0]
    white = basis - basis.mean(0)
    white = white[:, :d] @ torch.linalg.inv(torch.linalg.cholesky(white[:, :d].T @ white[:, :d] / n)).T
    a = torch.randn(d, d, dtype=torch.float64)
    a = a + a.T - 2 * a.trace() / d * torch.eye(d, dtype=torch.float64)
    sigma = torch.eye(d, dtype=torch.float64) + 1e-2 * a
    z = white @ torch.linalg.cholesky(sigma).T
    want = n * covariance_part(sigma)
    regularizer = build_regularizer("sacreg")
    floor = regularizer(white, 0)  # SACReg's eps moves the minimum a little
    assert float(regularizer(z, 0) - floor) == pytest.approx(float(want), rel=0.05)
    assert float(regularizer(torch.stack([z, white]), 0) - floor) == pytest.approx(float(want) / 2, rel=0.05)
    assert float(scaled_sacreg(z) / sacreg(z)) == pytest.approx(float(scaled_sacreg(white) / sacreg(white)))


def test_views_are_averaged() -> None:
    z = torch.stack([batch(20, 3, 1.0), batch(20, 3, 2.0)])
    for spec, statistic in {
        "mmd": mmd,
        "vicreg": vicreg,
        "ksd(unbiased=True)": lambda x: ksd(x, unbiased=True),
    }.items():
        expected = (statistic(z[0]) + statistic(z[1])) / 2
        assert torch.allclose(build_regularizer(spec)(z, 0), expected)
