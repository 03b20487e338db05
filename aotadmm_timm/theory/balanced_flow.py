"""Gradient flow of a lambda-balanced linear encoder-decoder in closed form (Dominé et al. 2025; lambda-JEPA, A.1).

With white inputs, <x x^T> = I, correlation S = <y x^T> and W2^T W2 - W1 W1^T = lambda I, Q = [W1^T; W2] obeys

    dQ/dt = F Q - 1/2 Q Q^T Q,   F = [[-lambda/2 I, S^T], [S, lambda/2 I]]

whose solution, for any such start, is

    Q Q^T(t) = E Q0 [I + Q0^T P Q0]^-1 Q0^T E,   E = exp(F t),   P = integral_0^t exp(2 F s) ds
"""

from __future__ import annotations

import torch
from torch import Tensor

from aotadmm_timm.theory.balance import imbalance


def balanced_gram(w1: Tensor, w2: Tensor, correlation: Tensor, times: Tensor) -> Tensor:
    """Q Q^T = [[W1^T W1, M^T], [M, W2 W2^T]] at each time, M = W2 W1 (`balance.gram_matrix` of the flow).

    Args:
        w1, w2: the start, (N_h, N_i) and (N_o, N_h), lambda-balanced for some lambda.
        correlation: S (N_o, N_i).
        times: (T,), in units of tau.
    Returns: (T, N_i + N_o, N_i + N_o).
    Raises: ValueError if the start is not balanced or the shapes do not fit.

    In float64 good to about 1e-16 exp(g t), g the difference between the largest eigenvalue of F and the smallest that
    is not negative: fast modes drown slow ones in rounding."""
    if correlation.shape != (w2.shape[0], w1.shape[1]):
        raise ValueError(f"correlation must be {(w2.shape[0], w1.shape[1])}, got {tuple(correlation.shape)}")
    delta = imbalance(w1, w2)
    lam = delta.diagonal().mean()
    excess = (delta - lam * torch.eye(len(delta), dtype=delta.dtype)).abs().max()
    if excess > 1e-8 * max(1.0, float(delta.abs().max())):
        raise ValueError(f"W2^T W2 - W1 W1^T must be a multiple of the identity, it is off by {float(excess):.1e}")
    inputs, outputs = w1.shape[1], w2.shape[0]
    f = torch.zeros(inputs + outputs, inputs + outputs, dtype=w1.dtype)
    f[:inputs, :inputs] -= lam / 2 * torch.eye(inputs, dtype=w1.dtype)
    f[inputs:, inputs:] += lam / 2 * torch.eye(outputs, dtype=w1.dtype)
    f[:inputs, inputs:], f[inputs:, :inputs] = correlation.T, correlation
    values, vectors = torch.linalg.eigh(f)
    start = vectors.T @ torch.cat([w1.T, w2])  # Q0 in the basis of F, where P is diagonal
    growth = values * times[:, None]
    doubled = torch.where(values == 0, 1.0, 2 * values)
    p = torch.where(values == 0, times[:, None], torch.expm1(2 * growth) / doubled)
    # With A = P^1/2 Q0 the solution is E P^-1/2 A [I + A^T A]^-1 A^T P^-1/2 E: neither factor grows like exp(2 f t).
    left, sizes, _ = torch.linalg.svd(p.sqrt()[..., None] * start, full_matrices=False)
    outer = (growth.exp() / p.sqrt())[..., None] * left * (sizes / (1 + sizes.square()).sqrt())[..., None, :]
    outer = torch.where((times == 0)[:, None, None], start, outer)  # there P is zero
    outer = vectors @ outer
    return outer @ outer.mT


def map_of(gram: Tensor, inputs: int) -> Tensor:
    """M = W2 W1, (..., N_o, N_i), a block of `balanced_gram`."""
    return gram[..., inputs:, :inputs]


def encoder_of(gram: Tensor, inputs: int) -> Tensor:
    """W1^T W1, (..., N_i, N_i), a block of `balanced_gram`, with the eigenvalues of the hidden covariance."""
    return gram[..., :inputs, :inputs]
