"""lambda-balance: conservation, approach, fixed point, factors, the 8x8 experiment, the minimiser."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.theory.balance import (
    balance_experiment,
    balanced_factors,
    gradient_flow,
    gram_matrix,
    hierarchical_task,
    imbalance,
    linear_sacreg,
    loss_gradients,
    predicted_imbalance,
    spectral_minimizer,
    spectral_objective,
)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W1 (3, 5), W2 (4, 3), X (5, 11), Y (4, 11): no two sizes equal."""
    return 0.7 * draw(3, 5, seed=0), 0.7 * draw(4, 3, seed=1), draw(5, 11, seed=2), draw(4, 11, seed=3)


def test_gradients_are_those_of_the_printed_loss() -> None:
    w1, w2, x, y = problem()
    w1, w2 = w1.requires_grad_(True), w2.requires_grad_(True)
    task = sum((w2 @ w1 @ x[:, n] - y[:, n]).square().sum() for n in range(11)) / (2 * 11)
    decay = 0.1 / 2 * ((w1**2).sum() + (w2**2).sum())
    regulariser = decay - 0.2 / 2 * torch.log(torch.det(w1 @ w1.T))
    assert linear_sacreg(w1, w2, lambda_reg=0.1, gamma=0.2).item() == pytest.approx(regulariser.item())
    expected = torch.autograd.grad(task + regulariser, (w1, w2))
    for ours, theirs in zip(loss_gradients(w1, w2, x, y, lambda_reg=0.1, gamma=0.2), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_balance_is_conserved_without_regulariser_and_the_loss_falls() -> None:
    w1, w2, x, y = problem()
    path = gradient_flow(w1, w2, x, y, time=10.0, steps=1000)
    for _, a, b in path[::100]:
        torch.testing.assert_close(imbalance(a, b), imbalance(w1, w2), rtol=0, atol=1e-7)
    losses = [(b @ a @ x - y).square().sum().item() for _, a, b in path[::100]]
    assert losses[-1] < 0.9 * losses[0]
    assert (path[-1][1] - w1).abs().max() > 0.1  # it moved: conservation is not for lack of motion


@pytest.mark.parametrize("tau", [1.0, 2.5])
def test_balance_approaches_its_fixed_point_exponentially(tau: float) -> None:
    w1, w2, x, y = problem()
    start = imbalance(w1, w2)
    for t, a, b in gradient_flow(w1, w2, x, y, time=10.0, steps=1000, lambda_reg=0.3, gamma=0.2, tau=tau)[::125]:
        predicted = predicted_imbalance(start, t, lambda_reg=0.3, gamma=0.2, tau=tau)
        torch.testing.assert_close(imbalance(a, b), predicted, rtol=0, atol=1e-6)
    expected = -0.2 / 0.3 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(predicted_imbalance(start, 1e3, lambda_reg=0.3, gamma=0.2), expected)
    torch.testing.assert_close(predicted_imbalance(start, 1e3, lambda_reg=0.0, gamma=0.0), start)


@pytest.mark.parametrize("lambda_bal", [-2.0, 0.0, 1.5])
def test_balanced_factors(lambda_bal: float) -> None:
    m, rotation = draw(4, 4, seed=0), torch.linalg.qr(draw(4, 4, seed=1)).Q
    w1, w2 = balanced_factors(m, lambda_bal, rotation=rotation)
    torch.testing.assert_close(w2 @ w1, m)
    torch.testing.assert_close(imbalance(w1, w2), lambda_bal * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(gram_matrix(w1, w2), gram_matrix(*balanced_factors(m, lambda_bal)))
    if lambda_bal < 0:  # the encoder cannot collapse (Lemma A.4)
        assert torch.linalg.svdvals(w1).min() >= math.sqrt(-lambda_bal)


def test_balanced_factors_minimise_the_regulariser_among_all_factors() -> None:
    w1, w2 = balanced_factors(draw(4, 4, seed=0), -0.4 / 0.2)
    best = linear_sacreg(w1, w2, lambda_reg=0.2, gamma=0.4)
    for seed in range(20):
        change = torch.eye(4, dtype=torch.float64) + 0.2 * draw(4, 4, seed=seed + 5)
        other = linear_sacreg(change @ w1, w2 @ torch.linalg.inv(change), lambda_reg=0.2, gamma=0.4)
        assert other > best


def test_the_task_has_the_stated_structure() -> None:
    x, y = hierarchical_task()
    assert set((y * math.sqrt(8)).round().unique().tolist()) == {-1.0, 0.0, 1.0}
    s = torch.linalg.svdvals(y @ torch.linalg.inv(x)) * math.sqrt(8)
    torch.testing.assert_close(s, torch.tensor([1, 1, 0.5**0.5, 0.5**0.5, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64))


def test_the_8x8_experiment() -> None:
    result = balance_experiment()
    assert result.trained.shape == (16, 16)
    assert (result.eigenvalues + 2).abs().max() < 0.03
    assert result.loss == pytest.approx(5.47e-4, rel=0.01)  # the paper's final MSE
    assert (result.trained - result.theory).abs().max() < 0.03
    assert (result.balanced - result.theory).abs().max() < 1e-3
    assert (result.history[0][1] + 2).abs().max() > 1  # it did not start there


@pytest.mark.parametrize(("gamma", "lambda_cov", "eps"), [(1.0, 1.0, 0.0), (0.6, 0.3, 0.5), (0.1, 1.0, 0.4)])
def test_the_minimiser_of_the_spectral_objective(gamma: float, lambda_cov: float, eps: float) -> None:
    def value(mu: Tensor, covariance: Tensor) -> float:
        return spectral_objective(mu, covariance, lambda_cov=lambda_cov, gamma=gamma, eps=eps).item()

    mu, covariance = spectral_minimizer(3, lambda_cov=lambda_cov, gamma=gamma, eps=eps)
    assert covariance[0, 0].item() == pytest.approx(max(gamma / lambda_cov - eps, 0))
    root = draw(3, 3, seed=0).requires_grad_(True)  # descent over C = L L^T finds the same point
    solver = torch.optim.LBFGS(
        [root], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-12, tolerance_change=1e-14
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = spectral_objective(mu, root @ root.T, lambda_cov=lambda_cov, gamma=gamma, eps=eps)
        loss.backward()
        return loss

    solver.step(closure)
    torch.testing.assert_close((root @ root.T).detach(), covariance, rtol=0, atol=1e-5)
    assert value(torch.tensor([0.1, 0, 0], dtype=torch.float64), covariance) > value(mu, covariance)


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(4, 2\)"):
        imbalance(torch.zeros(3, 5), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"square \(d, d\), got \(2, 3\)"):
        balanced_factors(torch.zeros(2, 3), -1.0)
