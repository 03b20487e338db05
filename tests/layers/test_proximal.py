"""Each update against loops in float64."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.layers.proximal import (
    admm_step,
    ista_step,
    overcomplete_ista,
    rms_rescale,
    soft_threshold,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_soft_threshold_is_the_proximal_operator() -> None:
    """It minimizes tau v + (v - x)^2 / 2 over v >= 0: compared with a search on a grid."""
    grid = torch.linspace(0, 4, 40001, dtype=torch.float64)
    for x in draw(20).tolist():
        best = grid[(0.3 * grid + 0.5 * (grid - x) ** 2).argmin()]
        got = soft_threshold(torch.tensor([x], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64))
        assert abs(got.item() - best.item()) < 1e-4


def test_rms_rescale_is_per_token() -> None:
    x, gain = draw(2, 3, 5), draw(5, seed=1)
    want = torch.empty_like(x)
    for b in range(2):
        for n in range(3):
            rms = math.sqrt(sum(float(x[b, n, i]) ** 2 for i in range(5)) / 5 + 1e-6)
            for i in range(5):
                want[b, n, i] = x[b, n, i] / rms * gain[i]
    torch.testing.assert_close(rms_rescale(x, gain), want, rtol=0, atol=1e-12)
    assert torch.equal(rms_rescale(torch.zeros(1, 5)), torch.zeros(1, 5))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("one_product", [False, True])
def test_ista_equals_the_three_product_form(one_product: bool, at_once: bool) -> None:
    y, d = draw(2, 4, 6), draw(6, 6, seed=1)

    def step(y: Tensor, d: Tensor) -> Tensor:
        return ista_step(y, d, 0.2, 0.7, one_product, at_once)

    want = torch.empty_like(y)
    for b in range(2):
        for n in range(4):
            column = y[b, n]
            ascent = d.t() @ column - d.t() @ (d @ column)
            for i in range(6):
                want[b, n, i] = max(0.0, float(column[i] + 0.2 * ascent[i]) - 0.2 * 0.7)
    torch.testing.assert_close(step(y, d), want, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(step, (y.requires_grad_(), d.requires_grad_()))


@pytest.mark.parametrize("at_once", [False, True])
def test_overcomplete_ista_is_two_steps_from_zero(at_once: bool) -> None:
    y, d, decoder = draw(1, 2, 4), draw(4, 16, seed=1), draw(4, 16, seed=2)
    want = torch.empty_like(y)
    for n in range(2):
        code = torch.zeros(16, dtype=torch.float64)
        for _ in range(2):
            gradient = d.t() @ (d @ code - y[0, n]) + 3.0
            code = torch.stack([(c - 0.1 * g).clamp(min=0) for c, g in zip(code, gradient, strict=True)])
        want[0, n] = decoder @ code
    torch.testing.assert_close(overcomplete_ista(y, d, decoder, 0.1, 3.0, at_once), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rescale_z", "rescale_w"), [(True, True), (True, False), (False, False)])
def test_admm_step_is_algorithm_1(rescale_z: bool, rescale_w: bool) -> None:
    z, v, w, a = (draw(2, 3, 5, seed=s) for s in range(4))
    coefficients, gain = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), draw(5, seed=4)
    tau = torch.tensor([0.1], dtype=torch.float64)
    got = admm_step(z, v, w, a, coefficients, tau, gain if rescale_z else None, rescale_z, rescale_w)
    for b in range(2):
        for n in range(3):
            z1 = [float(0.5 * z[b, n, i] + 0.3 * a[b, n, i] + 0.2 * (v[b, n, i] - w[b, n, i])) for i in range(5)]
            if rescale_z:
                rms = math.sqrt(sum(x * x for x in z1) / 5 + 1e-6)
                z1 = [x / rms * float(gain[i]) for i, x in enumerate(z1)]
            v1 = [max(0.0, z1[i] + float(w[b, n, i]) - 0.1) for i in range(5)]
            w1 = [float(w[b, n, i]) + z1[i] - v1[i] for i in range(5)]
            if rescale_w:
                rms = math.sqrt(sum(x * x for x in w1) / 5 + 1e-6)
                w1 = [x / rms for x in w1]
            for state, want in zip(got, (z1, v1, w1), strict=True):
                torch.testing.assert_close(state[b, n], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_without_rescaling_the_dual_stays_below_the_threshold() -> None:
    z, v, w, a = (draw(2, 3, 5, seed=s) for s in range(4))
    tau, coefficients = draw(1).abs(), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    z1, v1, w1 = admm_step(z, v, w, a, coefficients, tau, None, False, False)
    torch.testing.assert_close(w1, torch.minimum(w + z1, tau), rtol=0, atol=1e-12)
    assert (v1 >= 0).all()
