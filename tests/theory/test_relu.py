"""Two-layer ReLU networks: scales, tangent kernel and SACReg's gradient against autograd, conservation, ranks."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.theory.relu import (
    Networks,
    effective_rank_fraction,
    kernel_distance,
    layer_scales,
    spectral_gradient,
    students,
    tangent_kernel,
    teacher,
    train,
    unit_rows,
)
from aotadmm_timm.theory.restated import spectral


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def networks(count: int = 2, m: int = 6, d: int = 4) -> Networks:
    g = generator()
    return Networks(*(torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((count, m, d), (count, m))))


def inputs(n: int = 9, d: int = 4) -> Tensor:
    return unit_rows(n, d, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("imbalance", [-4.0, -0.25, 0.0, 1e-9, 3.0])
def test_scales_meet_both_conditions(scale: float, imbalance: float) -> None:
    inner, outer = layer_scales(scale, imbalance)
    assert inner * outer == pytest.approx(scale**2)
    assert outer**2 - inner**2 == pytest.approx(imbalance, abs=1e-12)


def test_students_start_at_zero_with_half_rank_and_the_imbalance_asked_for() -> None:
    scales = [(0.1, -1.0), (0.5, 0.0), (1.0, 2.0)]
    start = students(8, pairs=3, scales=scales, generator=generator())
    assert start.w.shape == (3, 6, 8)
    assert start(inputs(5, 8)).abs().max() < 1e-12
    imbalance = start.a.square() - start.w.square().sum(-1)
    torch.testing.assert_close(imbalance, torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64).expand(3, 6))
    hidden = start.hidden(inputs(50, 8))
    assert torch.linalg.matrix_rank(hidden).tolist() == [3, 3, 3]
    master = teacher(8, neurons=2, generator=generator())
    torch.testing.assert_close(master.w.norm(dim=-1), torch.ones(1, 2, dtype=torch.float64))
    assert master.a.abs().tolist() == [[1, 1]]


def test_tangent_kernel_is_the_gradients_gram_matrix() -> None:
    nets, x = networks(), inputs()
    for index, kernel in enumerate(tangent_kernel(nets, x)):
        w, a = nets.w[index].clone().requires_grad_(), nets.a[index].clone().requires_grad_()
        gradients = []
        for row in x:
            parts = torch.autograd.grad((row @ w.T).relu() @ a, (w, a))
            gradients.append(torch.cat([part.flatten() for part in parts]))
        stacked = torch.stack(gradients)
        torch.testing.assert_close(kernel, stacked @ stacked.T)


def test_kernel_distance_and_rank_of_known_matrices() -> None:
    identity = torch.eye(4, dtype=torch.float64)[None]
    assert kernel_distance(3 * identity, identity).item() == pytest.approx(0, abs=1e-12)
    assert kernel_distance(torch.ones(1, 4, 4, dtype=torch.float64), identity).item() == pytest.approx(0.5)
    corners = torch.tensor([[i, j] for i in (-1.0, 1.0) for j in (-1.0, 1.0)], dtype=torch.float64)
    assert effective_rank_fraction(corners[None]).item() == pytest.approx(1)
    assert effective_rank_fraction(corners[None, :, :1] * torch.tensor([1.0, 2.0])).item() == pytest.approx(0.5)
    stretched = effective_rank_fraction(corners[None] * torch.tensor([1.0, 3**0.5])).item()  # shares 1/4 and 3/4
    assert stretched == pytest.approx(math.exp(0.25 * math.log(4) + 0.75 * math.log(4 / 3)) / 2)


def test_the_regularizers_gradient_is_autograds() -> None:
    h = networks(2, 6, 4).hidden(inputs(11)).requires_grad_()
    (expected,) = torch.autograd.grad(spectral(h, eps=1e-2).sum(), h)
    torch.testing.assert_close(spectral_gradient(h.detach(), eps=1e-2), expected)


def test_training_steps_are_gradient_descent_on_the_printed_loss() -> None:
    nets, x = networks(), inputs(12)
    y = torch.linspace(-1, 1, 12, dtype=torch.float64)
    rates, weights = torch.tensor([0.05, 0.02], dtype=torch.float64), torch.tensor([0.0, 0.3], dtype=torch.float64)
    path = dict(train(nets, x, y, rates=rates, weights=weights, steps=1, checkpoints=[0, 1], eps=1e-2))
    w, a = nets.w.clone().requires_grad_(), nets.a.clone().requires_grad_()
    hidden = (x @ w.mT).relu()
    task = ((hidden @ a[..., None])[..., 0] - y).square().mean(1)
    gradients = torch.autograd.grad((task + weights * spectral(hidden, eps=1e-2)).sum(), (w, a))
    torch.testing.assert_close(path[1].w, nets.w - rates[:, None, None] * gradients[0])
    torch.testing.assert_close(path[1].a, nets.a - rates[:, None] * gradients[1])
    assert path[0].w is nets.w


def test_small_steps_conserve_every_neurons_imbalance_and_lower_the_loss() -> None:
    nets, x = networks(1), inputs(20)
    y = teacher(4, neurons=2, generator=generator())(x)[0]
    rates, weights = torch.full((1,), 1e-3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    path = dict(train(nets, x, y, rates=rates, weights=weights, steps=2000, checkpoints=[0, 2000]))
    before, after = ((n.a.square() - n.w.square().sum(-1)) for n in (path[0], path[2000]))
    torch.testing.assert_close(after, before, rtol=0, atol=5e-3)
    assert (path[2000].w - path[0].w).abs().max() > 0.2
    losses = [(n(x)[0] - y).square().mean().item() for n in (path[0], path[2000])]
    assert losses[1] < 0.3 * losses[0]
