"""Bias and variance of probes on embeddings of a given distribution (LeJEPA, section 3 and appendices A and B).

Linear: y = Z b + noise, least squares or ridge. Nonlinear: the mean of the labels within a radius of the query, and the
mean of the k nearest. Embeddings z (N, K) of mean zero, covariance eigenvalues `spectrum` (K,).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Sampler = Callable[[int, torch.Generator], Tensor]  # (N, generator) -> (N, K)


def least_squares_variance(spectrum: Tensor, n: int, *, noise: float = 1.0) -> float:
    """tr Var(b) of ordinary least squares on Gaussian embeddings: noise^2 tr(Sigma^-1) / (n - K - 1)   (Lemma 2)

    Raises: ValueError for n <= K + 1: it is infinite.
    """
    if n <= len(spectrum) + 1:
        raise ValueError(f"least squares in {len(spectrum)} dimensions needs n > {len(spectrum) + 1}, got {n}")
    return noise**2 * float((1 / spectrum).sum()) / (n - len(spectrum) - 1)


def ridge_bias(spectrum: Tensor, n: int, *, weight: float) -> tuple[float, float]:
    """|E b_hat - b| for a unit b, the worst direction and the root mean square of all, for n >> K   (Lemma 1)

    The error along eigenvector k is weight / (n spectrum_k + weight) of b's component.
    """
    lost = weight / (n * spectrum + weight)
    return float(lost.max()), float(lost.square().mean().sqrt())


def fit_ridge(z: Tensor, y: Tensor, *, weight: float = 0.0) -> Tensor:
    """argmin |y - z b|^2 + weight |b|^2; z (..., N, K), y (..., N) -> (..., K)."""
    gram = z.mT @ z + weight * torch.eye(z.shape[-1], dtype=z.dtype)
    return torch.linalg.solve(gram, (z.mT @ y[..., None])[..., 0])


def spectrum_of(condition: float, dim: int) -> Tensor:
    """Eigenvalues with sum `dim`, equally spaced in logarithm, the largest `condition` times the smallest."""
    values = condition ** torch.linspace(0, 1, dim, dtype=torch.float64)
    return dim * values / values.sum()


def fisher_information(name: str, spectrum: Tensor) -> float:
    """J = E |grad log p|^2 of the distributions of `sampler`: tr Sigma^-1 for a Gaussian, infinite for a uniform."""
    per_unit = {"gaussian": 1.0, "laplace": 2.0, "logistic": math.pi**2 / 9, "uniform": math.inf}
    return per_unit[name] * float((1 / spectrum).sum())


def sampler(name: str, spectrum: Tensor) -> Sampler:
    """Independent coordinates of the named shape and of variances `spectrum`."""

    def draw(n: int, generator: torch.Generator) -> Tensor:
        shape = (n, len(spectrum))
        if name == "gaussian":
            unit = torch.randn(shape, generator=generator, dtype=torch.float64)
        else:
            uniform = torch.rand(shape, generator=generator, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
            unit = {
                "laplace": lambda u: -(u - 0.5).sign() * torch.log1p(-2 * (u - 0.5).abs()) / math.sqrt(2),
                "logistic": lambda u: torch.logit(u) * math.sqrt(3) / math.pi,
                "uniform": lambda u: (u - 0.5) * math.sqrt(12),
            }[name](uniform)
        return unit * spectrum.sqrt()

    return draw


def radius_bias(information: float, dim: int, *, radius: float, slope: float = 1.0) -> float:
    """Integrated squared bias of the mean within a radius, for linear labels w . z, w of variance slope^2 a component.

    radius^4 / (K + 2)^2 slope^2 J   (Theorem 1, to leading order in the radius)
    """
    return radius**4 / (dim + 2) ** 2 * slope**2 * information


def neighbor_error(
    draw: Sampler,
    queries: Tensor,
    weights: Tensor,
    *,
    n: int,
    draws: int,
    radius: float | None = None,
    k: int | None = None,
    seed: int = 0,
) -> tuple[float, float]:
    """Squared bias and variance, means over queries and labels, of the mean over neighbors of noiseless labels.

    Args:
        draw: embeddings of a training set.
        queries: (Q, K). weights: (W, K), labels w . z.
        n, draws: size of a training set, and their number.
        radius, k: one of them: neighbors within a distance, or the k nearest. A query without neighbor in some training
            set is left out of it.
    Returns: squared bias, without the part that the variance over `draws` sets adds to it, and variance.
    """
    if (radius is None) == (k is None):
        raise ValueError(f"either radius or k, got {radius} and {k}")
    generator = torch.Generator().manual_seed(seed)
    sums = torch.zeros(2, len(queries), len(weights), dtype=torch.float64)
    counts = torch.zeros(len(queries), 1, dtype=torch.float64)
    for _ in range(draws):
        z = draw(n, generator)
        near = _neighbors(torch.cdist(queries, z), radius, k)
        size = near.sum(1, keepdim=True)
        estimate = near @ (z @ weights.T) / size.clamp_min(1)  # zero where there is no neighbor
        sums += torch.stack([estimate, estimate.square()])
        counts += size > 0
    enough = (counts > 1).squeeze(1)
    counts = counts[enough]
    mean, square = sums[:, enough] / counts
    variance = (square - mean.square()) * counts / (counts - 1)
    bias = (mean - queries[enough] @ weights.T).square() - variance / counts
    return float(bias.mean()), float(variance.mean())


def _neighbors(distances: Tensor, radius: float | None, k: int | None) -> Tensor:
    """1 for a neighbor, 0 for any other, (Q, N)."""
    if radius is not None:
        return (distances <= radius).double()
    assert k is not None
    return torch.zeros_like(distances).scatter_(1, distances.topk(k, largest=False).indices, 1.0)
