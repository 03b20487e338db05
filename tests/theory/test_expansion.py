"""Theorem 1 and Appendix A of AoT-ADMM, numerically."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.losses import sigreg
from aotadmm_timm.theory import coding_rate
from aotadmm_timm.theory.expansion import (
    coding_rate_gap,
    covariance_constant,
    covariance_part,
    gaussian_sigreg,
    gradient_alignment,
    local_ratio,
    random_spectra,
    ratio_bounds,
    traceless_gradients,
)
from aotadmm_timm.theory.figures import expansion_figure


def sphere(d: int, count: int, seed: int = 0) -> Tensor:
    a = torch.randn(d, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a / a.norm(dim=0)


def direction(d: int, seed: int = 0) -> Tensor:
    """A random traceless symmetric matrix of norm 1."""
    x = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x + x.T
    x = x - x.trace() / d * torch.eye(d, dtype=torch.float64)
    return x / x.norm()


def test_the_constant_is_the_literal_sum_and_close_to_the_integral() -> None:
    total, step = 0.0, 3 / 16
    for j in range(17):
        t = j * step
        half = 0.5 if j in (0, 16) else 1.0
        total += 2 * half * step * t**4 * math.exp(-(t**2)) * math.exp(-(t**2) / 2) / 4
    assert covariance_constant() == pytest.approx(total, rel=1e-12)
    assert covariance_constant() == pytest.approx(0.1206, abs=5e-5)
    assert covariance_constant() == pytest.approx(3 / 16 * math.sqrt(math.pi) / 1.5**2.5, rel=1e-4)  # over R


def test_covariance_part_is_the_mean_over_the_sphere() -> None:
    d = 5
    sigma = torch.eye(d, dtype=torch.float64) * 1.3 + 0.4 * direction(d)  # tr A is not 0 here
    a = sphere(d, 400_000)
    shifted = sigma - torch.eye(d, dtype=torch.float64)
    sampled = ((a * (shifted @ a)).sum(0) ** 2).mean().item()
    assert covariance_part(sigma).item() == pytest.approx(covariance_constant() * sampled, rel=5e-3)
    # on S this is Eq. (A.12)
    sigma = torch.eye(d, dtype=torch.float64) + 0.2 * direction(d)
    expected = 2 * covariance_constant() / (d * (d + 2)) * 0.2**2
    assert covariance_part(sigma).item() == pytest.approx(expected, rel=1e-10)


def test_gap_is_the_difference_of_coding_rates() -> None:
    z = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sigma = z.T @ z / 200
    isotropic = 0.5 * 6 * math.log(1 + 6 / 0.3**2)
    assert coding_rate_gap(sigma, eps=0.3).item() == pytest.approx(isotropic - coding_rate(z, eps=0.3).item(), abs=1e-9)


@pytest.mark.parametrize("eps", [0.1, 0.5, 2.0])
def test_leading_orders_and_their_limit(eps: float) -> None:
    d = 8
    theta = d / eps**2 / (1 + d / eps**2)
    errors = []
    for size in (1e-1, 1e-2, 1e-3):
        sigma = torch.eye(d, dtype=torch.float64) + size * direction(d)
        gap = coding_rate_gap(sigma, eps=eps).item()
        assert gap == pytest.approx(theta**2 / 4 * size**2, rel=2 * size)  # Eq. (A.22), error of third order
        errors.append(abs(covariance_part(sigma).item() / gap / local_ratio(d, eps=eps) - 1))  # Eq. (A.23)
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 1e-3


def test_sigreg_of_a_gaussian_approaches_its_covariance_part() -> None:
    d, a = 6, sphere(6, 50_000)
    for size, tolerance in ((0.5, 0.5), (0.05, 0.05)):
        sigma = torch.eye(d, dtype=torch.float64) + size * direction(d)
        assert gaussian_sigreg(sigma, a).item() == pytest.approx(covariance_part(sigma).item(), rel=tolerance)


def test_the_loss_of_the_package_is_n_times_eq_a2() -> None:
    # an empirical set of this size has N * (A.2) plus the sampling floor of about 1.05
    d, n = 4, 20_000
    sigma = torch.diag(torch.tensor([2.2, 1.0, 0.5, 0.3], dtype=torch.float64))
    z = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ sigma.sqrt()
    a = sphere(d, 512)
    assert sigreg(z, a).item() == pytest.approx(n * gaussian_sigreg(sigma, a).item() + 1.05, rel=0.03)


@pytest.mark.parametrize(("d", "eps"), [(2, 0.5), (5, 0.1), (12, 3.0)])
def test_proposition_1_bounds_hold_on_random_spectra_and_are_tight(d: int, eps: float) -> None:
    low, high = ratio_bounds(d, eps=eps)
    sigma = random_spectra(4000, d)
    assert sigma.diagonal(dim1=-2, dim2=-1).sum(-1) == pytest.approx(torch.full((4000,), float(d)).double())
    gap = coding_rate_gap(sigma, eps=eps)
    assert (gap > 0).all()  # R is largest at I, Eq. (A.18)
    ratio = (covariance_part(sigma) / gap)[gap > 1e-9]
    assert low * (1 - 1e-6) < ratio.min()
    assert ratio.max() < high * (1 + 1e-6)
    assert low < local_ratio(d, eps=eps) * (1 + 1e-9)
    assert local_ratio(d, eps=eps) < high * (1 + 1e-9)
    if d > 5:  # ascent stays at local optima there
        return
    # ascent from the best random spectra gets there: the search missed nothing, and is not loose
    for sign, bound in ((1, low), (-1, high)):
        start = sigma.diagonal(dim1=-2, dim2=-1)[gap > 1e-9][(sign * ratio).argsort()[:16]]
        logits = start.clamp_min(1e-9).log().requires_grad_(True)
        solver = torch.optim.Adam([logits], lr=0.03)
        for _ in range(400):
            spectrum = torch.diag_embed(d * logits.softmax(-1))
            value = covariance_part(spectrum) / coding_rate_gap(spectrum, eps=eps)
            solver.zero_grad()
            (sign * value).sum().backward()
            solver.step()
        extreme = value.min().item() if sign == 1 else value.max().item()
        assert low * (1 - 1e-4) < extreme < high * (1 + 1e-4)
        assert extreme == pytest.approx(bound, rel=0.05)


def test_gradients_are_exact_and_aligned() -> None:
    d, eps = 6, 0.5
    sigma = (torch.eye(d, dtype=torch.float64) + 0.3 * direction(d)).requires_grad_(True)
    for value, ours in zip(
        (covariance_part(sigma), coding_rate_gap(sigma, eps=eps)), traceless_gradients(sigma, eps=eps), strict=True
    ):
        gradient = torch.autograd.grad(value, sigma)[0]
        gradient = (gradient + gradient.T) / 2
        traceless = gradient - gradient.trace() / d * torch.eye(d, dtype=torch.float64)
        torch.testing.assert_close(ours, traceless, rtol=1e-8, atol=1e-12)
    theta = d / eps**2 / (1 + d / eps**2)
    size = 1e-4
    left, right = traceless_gradients(torch.eye(d, dtype=torch.float64) + size * direction(d), eps=eps)
    expected = 2 * covariance_constant() * theta**2 / (d * (d + 2)) * size**2
    assert (left * right).sum().item() == pytest.approx(expected, rel=1e-3)  # Eq. (A.26)
    cosines = gradient_alignment(random_spectra(500, d), eps=eps)
    assert (cosines > 0).all()
    assert cosines[0] > 0.999


@pytest.mark.parametrize("call", [covariance_part, lambda s: coding_rate_gap(s, eps=1.0)])
def test_bad_shapes_are_named(call: object) -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., d, d\), got \(2, 3\)"):
        call(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="need d >= 2"):
        ratio_bounds(1, eps=1.0)


def test_figure(tmp_path: object) -> None:
    figure = expansion_figure(dim=4, count=50)
    figure.savefig(tmp_path / "expansion.png")
    assert len(figure.axes[0].lines) == 4
