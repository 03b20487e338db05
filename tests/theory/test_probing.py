"""Probes: closed forms against sampling, shapes of known variance and Fisher information, neighbors by hand."""

import math

import pytest
import torch
from scipy import integrate, stats

from aotadmm_timm.theory.probing import (
    fisher_information,
    fit_ridge,
    least_squares_variance,
    neighbor_error,
    radius_bias,
    ridge_bias,
    sampler,
    spectrum_of,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_spectra_have_equal_energy() -> None:
    values = spectrum_of(16.0, 5)
    assert values.sum().item() == pytest.approx(5)
    assert (values[-1] / values[0]).item() == pytest.approx(16)
    torch.testing.assert_close(spectrum_of(1.0, 3), torch.ones(3, dtype=torch.float64))


def test_ridge_solves_its_normal_equations() -> None:
    z = torch.randn(4, 9, 3, generator=generator(), dtype=torch.float64)
    y = torch.randn(4, 9, generator=generator(1), dtype=torch.float64)
    b = fit_ridge(z, y, weight=0.7)
    torch.testing.assert_close((z.mT @ ((z @ b[..., None]) - y[..., None]))[..., 0] + 0.7 * b, torch.zeros_like(b))


def test_variance_of_least_squares_is_the_wishart_mean() -> None:
    spectrum = spectrum_of(9.0, 3)
    z = sampler("gaussian", spectrum)(20_000 * 12, generator()).unflatten(0, (20_000, 12))
    noise = 0.5 * torch.randn(20_000, 12, generator=generator(1), dtype=torch.float64)
    measured = fit_ridge(z, noise).square().sum(1).mean().item()
    assert measured == pytest.approx(least_squares_variance(spectrum, 12, noise=0.5), rel=0.05)
    with pytest.raises(ValueError, match="n > 4, got 4"):
        least_squares_variance(spectrum, 4)


def test_bias_of_ridge_along_each_axis() -> None:
    spectrum, n, weight = spectrum_of(4.0, 3), 4000, 800.0
    z = sampler("gaussian", spectrum)(n, generator())
    lost = [(fit_ridge(z, z @ axis, weight=weight) - axis).norm().item() for axis in torch.eye(3, dtype=torch.float64)]
    worst, rms = ridge_bias(spectrum, n, weight=weight)
    assert max(lost) == pytest.approx(worst, rel=0.05)
    assert math.hypot(*lost) / math.sqrt(3) == pytest.approx(rms, rel=0.05)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "logistic", "uniform"])
def test_shapes_have_the_variance_asked_for(name: str) -> None:
    spectrum = torch.tensor([0.25, 4.0], dtype=torch.float64)
    z = sampler(name, spectrum)(200_000, generator())
    torch.testing.assert_close(z.var(0), spectrum, rtol=0.02, atol=0)
    assert z.mean(0).abs().max() < 0.02
    scipy = {"gaussian": stats.norm(), "laplace": stats.laplace(scale=0.5**0.5)}
    scipy |= {"logistic": stats.logistic(scale=3**0.5 / math.pi), "uniform": stats.uniform(-(3**0.5), 12**0.5)}
    assert stats.kstest(2 * z[:20_000, 0].numpy(), scipy[name].cdf).pvalue > 0.01
    if name != "uniform":
        density, step = scipy[name].pdf, 1e-4
        points = [integrate.quad(lambda x: _score(density, x, step) ** 2 * density(x), 1e-3, 12)[0] * 2]
        assert fisher_information(name, torch.ones(1)) == pytest.approx(points[0], rel=0.01)


def _score(density, x: float, step: float) -> float:  # type: ignore[no-untyped-def]
    return (math.log(density(x + step)) - math.log(density(x - step))) / (2 * step)


def test_the_mean_of_all_neighbors_is_the_mean_of_all_labels() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    sets = iter([torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[2.0, 0.0], [2.0, 0.0]])])
    bias, variance = neighbor_error(lambda n, g: next(sets).double(), queries, weights, n=2, draws=2, radius=100.0)
    # estimates 1 and 2, their mean 1.5; labels 1 and 0; variance 1/2, half of which is in the squared error of the mean
    assert variance == pytest.approx(0.5)
    assert bias == pytest.approx((0.5**2 + 1.5**2) / 2 - 0.25)
    sets = iter([torch.tensor([[0.9, 0.0], [5.0, 5.0]])] * 2)
    bias, variance = neighbor_error(lambda n, g: next(sets).double(), queries[:1], weights, n=2, draws=2, k=1)
    assert (bias, variance) == (pytest.approx(0.01), pytest.approx(0, abs=1e-12))
    with pytest.raises(ValueError, match="either radius or k"):
        neighbor_error(lambda n, g: queries, queries, weights, n=2, draws=2)


def test_the_radius_bias_formula_holds_for_a_small_radius() -> None:
    spectrum = torch.ones(1, dtype=torch.float64)
    draw = sampler("gaussian", spectrum)
    queries = draw(200, generator(3))
    weights = torch.ones(1, 1, dtype=torch.float64)
    measured, _ = neighbor_error(draw, queries, weights, n=2000, draws=40, radius=0.3)
    assert measured == pytest.approx(radius_bias(1.0, 1, radius=0.3), rel=0.25)
