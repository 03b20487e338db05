"""Two-layer ReLU networks: imbalance of the layers, tangent kernel, and training with SACReg (lambda-JEPA, A.2.3).

f(x) = a . ReLU(W x), many networks at once: W (R, m, d), a (R, m), the same inputs x (n, d). Scalar imbalance of a
neuron: a_j^2 - |w_j|^2 (Kunin et al. 2024); gradient flow without regularizer conserves it for each neuron.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from aotadmm_timm.theory.spectrum import effective_rank


class Networks(NamedTuple):
    """R two-layer networks of one size."""

    w: Tensor  # (R, m, d)
    a: Tensor  # (R, m)

    def hidden(self, x: Tensor) -> Tensor:
        """ReLU(x W^T), (R, n, m) of x (n, d)."""
        return (x @ self.w.mT).relu()

    def __call__(self, x: Tensor) -> Tensor:
        """(R, n)."""
        return (self.hidden(x) @ self.a[..., None])[..., 0]


def layer_scales(scale: float, imbalance: float) -> tuple[float, float]:
    """|w| and |a| of a neuron with |w| |a| = scale^2 and a^2 - |w|^2 = imbalance."""
    half = imbalance / 2
    outer = half + math.sqrt(half**2 + scale**4)  # a^2, without cancellation for a positive imbalance only
    inner = scale**4 / outer if imbalance >= 0 else outer - imbalance
    outer = scale**4 / inner
    return math.sqrt(inner), math.sqrt(outer)


def unit_rows(*shape: int, generator: torch.Generator) -> Tensor:
    """Normal rows scaled to unit length, float64."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def teacher(dim: int, *, neurons: int, generator: torch.Generator) -> Networks:
    """One network with unit rows and output weights of +-1."""
    w = unit_rows(1, neurons, dim, generator=generator)
    return Networks(w, torch.randn(1, neurons, generator=generator, dtype=torch.float64).sign())


def students(dim: int, *, pairs: int, scales: Sequence[tuple[float, float]], generator: torch.Generator) -> Networks:
    """One network for each (scale, imbalance), all from the same draw, with f = 0 at the start.

    Each neuron has a copy with the opposite output weight: the hidden layer starts with rank `pairs`, half its width.
    """
    rows = unit_rows(pairs, dim, generator=generator)
    signs = torch.randn(pairs, generator=generator, dtype=torch.float64).sign()
    lengths = [layer_scales(scale, imbalance) for scale, imbalance in scales]
    w = torch.stack([inner * torch.cat([rows, rows]) for inner, _ in lengths])
    a = torch.stack([outer * torch.cat([signs, -signs]) for _, outer in lengths])
    return Networks(w, a)


def tangent_kernel(networks: Networks, x: Tensor) -> Tensor:
    """K (R, n, n), K_ij the inner product of the gradients of f(x_i) and f(x_j) in all weights.

    K = H H^T + (X X^T) * (S S^T), S_ij = a_j [w_j . x_i > 0]
    """
    h = networks.hidden(x)
    slopes = (h > 0) * networks.a[:, None]
    return h @ h.mT + (x @ x.mT) * (slopes @ slopes.mT)


def kernel_distance(kernel: Tensor, start: Tensor) -> Tensor:
    """1 - <K, K_0> / (|K| |K_0|), (R,): 0 for the same kernel up to its scale."""
    inner = (kernel * start).sum((-2, -1))
    return 1 - inner / (kernel.flatten(-2).norm(dim=-1) * start.flatten(-2).norm(dim=-1))


def effective_rank_fraction(h: Tensor) -> Tensor:
    """exp(entropy of the covariance's eigenvalues over their sum) / m of features h (R, n, m) -> (R,)."""
    centered = h - h.mean(-2, keepdim=True)
    return effective_rank(torch.linalg.eigvalsh(centered.mT @ centered)) / h.shape[-1]


def spectral_gradient(h: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Gradient in h (R, n, m) of `restated.spectral`, SACReg as its authors' code has it, on the whole space.

    [ (H - mu) (I - C^-1) / (n - 1) + mu / n ] / m,  C = cov + eps I
    """
    n, m = h.shape[-2:]
    mean = h.mean(-2, keepdim=True)
    centered = h - mean
    identity = torch.eye(m, dtype=h.dtype)
    inverse = torch.linalg.inv(centered.mT @ centered / (n - 1) + eps * identity)
    return (centered @ (identity - inverse) / (n - 1) + mean / n) / m


def train(
    networks: Networks,
    x: Tensor,
    y: Tensor,
    *,
    rates: Tensor,
    weights: Tensor,
    steps: int,
    checkpoints: Sequence[int],
    eps: float = 1e-4,
) -> Iterator[tuple[int, Networks]]:
    """Full-batch gradient descent on mean (f(x) - y)^2 + weight SACReg(hidden); (step, networks) at the checkpoints.

    Args:
        x, y: inputs (n, d), targets (n,).
        rates, weights: learning rate and weight of SACReg, (R,) each.
        checkpoints: steps, among them 0 for the start; `steps` is the last that is taken.
    """
    w, a = networks
    held = weights > 0  # the regularizer costs an inverse: only where it has a weight
    for step in range(steps + 1):
        if step in checkpoints:
            yield step, Networks(w, a)
        h = Networks(w, a).hidden(x)
        residual = 2 / len(x) * ((h @ a[..., None])[..., 0] - y)
        slope = residual[..., None] * a[:, None]
        if held.any():
            slope[held] += weights[held, None, None] * spectral_gradient(h[held], eps=eps)
        a_slope = (h.mT @ residual[..., None])[..., 0]
        w = w - rates[:, None, None] * ((slope * (h > 0)).mT @ x)
        a = a - rates[:, None] * a_slope
