"""lambda-balance in two-layer linear networks, and the minimiser of SACReg (lambda-JEPA, sections 3.1, 3.2 and A.1).

Network y = W2 W1 x with W1 (N_h, N_i), W2 (N_o, N_h); imbalance Delta = W2^T W2 - W1 W1^T. Samples are columns here, as
in the paper: X (N_i, P), Y (N_o, P). Task loss 1/2 <|W2 W1 x - y|^2>, the mean over the P samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


def imbalance(w1: Tensor, w2: Tensor) -> Tensor:
    """Delta = W2^T W2 - W1 W1^T, (N_h, N_h)."""
    if w1.ndim != 2 or w2.ndim != 2 or w2.shape[1] != w1.shape[0]:
        raise ValueError(f"W1 (N_h, N_i) and W2 (N_o, N_h) do not fit: {tuple(w1.shape)} and {tuple(w2.shape)}")
    return w2.T @ w2 - w1 @ w1.T


def linear_sacreg(w1: Tensor, w2: Tensor, *, lambda_reg: float, gamma: float) -> Tensor:
    """lambda_reg / 2 (|W1|^2 + |W2|^2) - gamma / 2 logdet(W1 W1^T)   (Linear SACReg, section 3.1)"""
    decay = lambda_reg / 2 * (w1.square().sum() + w2.square().sum())
    if gamma == 0:  # W1 may then be of any rank
        return decay
    return decay - gamma / 2 * torch.linalg.slogdet(w1 @ w1.T).logabsdet


def loss_gradients(
    w1: Tensor, w2: Tensor, x: Tensor, y: Tensor, *, lambda_reg: float = 0.0, gamma: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Gradients in W1 and W2 of the task loss plus `linear_sacreg`."""
    g = (w2 @ w1 @ x - y) @ x.T / x.shape[1]
    g1, g2 = w2.T @ g + lambda_reg * w1, g @ w1.T + lambda_reg * w2
    if gamma:
        g1 = g1 - gamma * torch.linalg.solve(w1 @ w1.T, w1)
    return g1, g2


def gradient_flow(
    w1: Tensor,
    w2: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    time: float,
    steps: int,
    lambda_reg: float = 0.0,
    gamma: float = 0.0,
    tau: float = 1.0,
) -> list[tuple[float, Tensor, Tensor]]:
    """tau dW/dt = -gradient, by the classical Runge-Kutta method: [(t, W1, W2)] at steps + 1 equal times.

    Delta is conserved without regulariser (Lemma A.2) and follows `predicted_imbalance` with it, up to the step's error
    O((time / steps)^4); gradient descent, one Euler step of this, conserves it to O(step) only.
    """
    h = time / steps / tau
    path = [(0.0, w1, w2)]

    def slope(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        g1, g2 = loss_gradients(a, b, x, y, lambda_reg=lambda_reg, gamma=gamma)
        return -g1, -g2

    for i in range(steps):
        p1, p2 = slope(w1, w2)
        q1, q2 = slope(w1 + h / 2 * p1, w2 + h / 2 * p2)
        r1, r2 = slope(w1 + h / 2 * q1, w2 + h / 2 * q2)
        s1, s2 = slope(w1 + h * r1, w2 + h * r2)
        w1, w2 = w1 + h / 6 * (p1 + 2 * q1 + 2 * r1 + s1), w2 + h / 6 * (p2 + 2 * q2 + 2 * r2 + s2)
        path.append(((i + 1) * time / steps, w1, w2))
    return path


def predicted_imbalance(start: Tensor, t: float, *, lambda_reg: float, gamma: float, tau: float = 1.0) -> Tensor:
    """Delta(t) = lambda_bal I + exp(-2 lambda_reg t / tau) (Delta(0) - lambda_bal I), lambda_bal = -gamma / lambda_reg

    (Theorem A.7; lambda_reg = 0 without gamma leaves Delta where it is, Lemma A.2.)
    """
    if lambda_reg == 0 and gamma == 0:
        return start
    fixed = -gamma / lambda_reg * torch.eye(len(start), dtype=start.dtype)
    return fixed + math.exp(-2 * lambda_reg * t / tau) * (start - fixed)


def balanced_factors(m: Tensor, lambda_bal: float, *, rotation: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """W1, W2 with W2 W1 = M and W2^T W2 - W1 W1^T = lambda_bal I   (Theorem A.9)

    M = U S V^T:  W1 = R A V^T, W2 = U B R^T,  A^2 = (sqrt(lambda^2 + 4 S^2) - lambda) / 2,  B^2 = A^2 + lambda
    Among all factors of M they minimise `linear_sacreg` with -gamma / lambda_reg = lambda_bal (Theorem 3.1).

    Args:
        m: (d, d), square: then the hidden width is d as well and every balance can be reached.
        rotation: R (d, d), orthogonal; the identity by default.
    """
    if m.ndim != 2 or m.shape[0] != m.shape[1]:
        raise ValueError(f"the mapping must be square (d, d), got {tuple(m.shape)}")
    u, s, vh = torch.linalg.svd(m)
    root = (lambda_bal**2 + 4 * s**2).sqrt()
    a, b = ((root - lambda_bal) / 2).clamp_min(0).sqrt(), ((root + lambda_bal) / 2).clamp_min(0).sqrt()
    r = torch.eye(len(m), dtype=m.dtype) if rotation is None else rotation
    return (r * a) @ vh, (u * b) @ r.T


def gram_matrix(w1: Tensor, w2: Tensor) -> Tensor:
    """Q = [[W1^T W1, M^T], [M, W2 W2^T]], M = W2 W1   (A.1.8); free of rotations of the hidden layer."""
    m = w2 @ w1
    return torch.cat([torch.cat([w1.T @ w1, m.T], 1), torch.cat([m, w2 @ w2.T], 1)])


def hierarchical_task() -> tuple[Tensor, Tensor]:
    """X = sqrt(8) I and the targets Y of A.1.8, float64: entries 0 and +-1/sqrt(8), a binary tree over eight items.

    Rows of Y: all items; one half against the other; the halves' quarters; the pairs. The least-squares map Y X^-1 has
    the singular values (1, 1, .707, .707, .5, .5, .5, .5) / sqrt(8). The paper gives the entries, the structure and the
    multiplicities 2, 2, 4, not the matrix; this one has them all.
    """
    y = torch.zeros(8, 8, dtype=torch.float64)
    y[0] = 1
    row = 1
    for width in (8, 4, 2):
        for start in range(0, 8, width):
            y[row, start : start + width // 2] = 1
            y[row, start + width // 2 : start + width] = -1
            row += 1
    return math.sqrt(8) * torch.eye(8, dtype=torch.float64), y / math.sqrt(8)


class BalanceExperiment(NamedTuple):
    """Result of `balance_experiment`."""

    trained: Tensor  # Q (16, 16) of the regularised network
    theory: Tensor  # Q of the balanced factors of the least-squares map
    balanced: Tensor  # Q of a balanced network trained without regulariser
    eigenvalues: Tensor  # (8,) of the regularised network's imbalance, ascending
    loss: float  # task loss of the regularised network at the end
    history: list[tuple[int, Tensor]]  # (step, imbalance eigenvalues) along the way


def balance_experiment(
    *,
    lambda_reg: float = 0.1,
    gamma: float = 0.2,
    sigma: float = 0.5,
    learning_rate: float = 1e-3,
    steps: int = 30_000,
    seed: int = 0,
) -> BalanceExperiment:
    """The 8x8 experiment of A.1.8: three Gram matrices that should agree, at lambda_bal = -gamma / lambda_reg = -2.

    (A) Gaussian initialisation, gradient descent with the regulariser. (B) Theorem A.9 on the least-squares map.
    (C) balanced factors of a small random map, gradient descent without regulariser. Weight decay shrinks (A)'s map by
    about lambda_reg / (lambda_reg + 2): that makes its loss, 5.5e-4.
    """
    x, y = hierarchical_task()
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(3)]
    w1, w2, history = sigma * draw[0], sigma * draw[1], []
    for step in range(steps + 1):
        if step % max(1, steps // 100) == 0:
            history.append((step, torch.linalg.eigvalsh(imbalance(w1, w2))))
        if step < steps:
            g1, g2 = loss_gradients(w1, w2, x, y, lambda_reg=lambda_reg, gamma=gamma)
            w1, w2 = w1 - learning_rate * g1, w2 - learning_rate * g2
    loss = (w2 @ w1 @ x - y).square().sum().item() / (2 * x.shape[1])

    lambda_bal = -gamma / lambda_reg
    theory = gram_matrix(*balanced_factors(y @ torch.linalg.inv(x), lambda_bal))
    b1, b2 = balanced_factors(0.1 * draw[2], lambda_bal)
    for _ in range(steps):
        g1, g2 = loss_gradients(b1, b2, x, y)
        b1, b2 = b1 - learning_rate * g1, b2 - learning_rate * g2
    return BalanceExperiment(gram_matrix(w1, w2), theory, gram_matrix(b1, b2), history[-1][1], loss, history)


def spectral_objective(
    mu: Tensor,
    covariance: Tensor,
    *,
    lambda_mean: float = 1.0,
    lambda_cov: float = 1.0,
    gamma: float = 1.0,
    eps: float = 0.0,
) -> Tensor:
    """R_SAC = lambda_mean / 2 |mu|^2 + lambda_cov / 2 tr C - gamma / 2 logdet(C + eps I)   (section 3.2)"""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    logdet = torch.linalg.slogdet(covariance + eps * identity).logabsdet
    return lambda_mean / 2 * mu.square().sum() + lambda_cov / 2 * covariance.trace() - gamma / 2 * logdet


def spectral_minimizer(
    d: int, *, lambda_cov: float = 1.0, gamma: float = 1.0, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The one minimiser of `spectral_objective`: mu = 0, C = max(gamma / lambda_cov - eps, 0) I   (Theorem A.13)"""
    return torch.zeros(d, dtype=torch.float64), max(gamma / lambda_cov - eps, 0.0) * torch.eye(d, dtype=torch.float64)
