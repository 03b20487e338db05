"""One figure for each part of the theory (needs the extra [train]).

`python -m aotadmm_timm.theory.figures FOLDER` draws all three.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm.theory.balance import balance_experiment
from aotadmm_timm.theory.expansion import (
    coding_rate_gap,
    covariance_part,
    gradient_alignment,
    local_ratio,
    random_spectra,
    ratio_bounds,
)
from aotadmm_timm.theory.rates import coding_rate, compression_rate, compression_rate_gradient


def coding_rate_figure(*, tokens: int = 64, dim: int = 32, heads: int = 4, eps: float = 0.5, seed: int = 0) -> Any:
    """Left: R of tokens that fill more and more directions at fixed energy. Right: R^c under its exact gradient."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(tokens, dim, generator=generator, dtype=torch.float64)
    bases = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    bases = bases.unflatten(1, (heads, -1)).transpose(0, 1)
    filled = [(dim / r) ** 0.5 * z * (torch.arange(dim) < r) for r in range(1, dim + 1)]
    rates = [compression_rate(z, bases, eps=eps).item()]
    for _ in range(40):
        gradient = compression_rate_gradient(z, bases, eps=eps)
        z = z - 0.5 * gradient
        rates.append(compression_rate(z, bases, eps=eps).item())
    figure, (left, right) = _figure()
    left.plot(range(1, dim + 1), [coding_rate(x, eps=eps).item() for x in filled])
    left.set(xlabel="directions filled", ylabel="R(Z)", title="Expansion: R at fixed energy (Eq. 2)")
    right.plot(rates)
    right.set(xlabel="gradient steps", ylabel="R^c(Z | U)", title="Compression: steps on R^c (Eq. 7)")
    return figure


def expansion_figure(*, dim: int = 16, eps: float = 0.5, count: int = 1000) -> Any:
    """Left: both sides of Proposition 1 on random spectra, with its bounds. Right: the gradients' alignment (A.26)."""
    sigma = random_spectra(count, dim)
    gap, part = coding_rate_gap(sigma, eps=eps), covariance_part(sigma)
    low, high = ratio_bounds(dim, eps=eps)
    limit = local_ratio(dim, eps=eps)
    figure, (left, right) = _figure()
    left.loglog(gap, part, ".", markersize=3, label=f"{count} random spectra, d = {dim}")
    ends = torch.stack([gap.min(), gap.max()])
    for slope, label, style in ((high, "k2", ":"), (limit, "limit (A.23)", "-"), (low, "k1", "--")):
        left.loglog(ends, slope * ends, "k" + style, linewidth=1, label=label)
    left.set(xlabel="R(I) - R(Sigma)", ylabel="SIGReg, covariance part", title="Two measures of expansion (A.24)")
    left.legend()
    distance = (sigma - torch.eye(dim, dtype=sigma.dtype)).flatten(1).norm(dim=1)
    right.semilogx(distance, gradient_alignment(sigma, eps=eps), ".", markersize=3)
    right.set(xlabel="|Sigma - I|", ylabel="cosine", ylim=(0, 1.02), title="Alignment of the gradients (A.26)")
    return figure


def balance_figure(*, seed: int = 0, steps: int = 30_000) -> Any:
    """The three Gram matrices of A.1.8 and the eigenvalues of the imbalance on their way to -gamma / lambda_reg."""
    result = balance_experiment(seed=seed, steps=steps)
    figure, axes = _figure(4)
    limit = float(result.theory.abs().max())
    for axis, matrix, title in zip(
        axes,
        (result.trained, result.theory, result.balanced),
        ("(A) trained with SACReg", "(B) Theorem A.9", "(C) balanced start"),
        strict=False,
    ):
        axis.imshow(matrix.numpy(), vmin=-limit, vmax=limit, cmap="RdBu")
        axis.set(title=title, xticks=[], yticks=[])
    axes[3].plot([step for step, _ in result.history], torch.stack([values for _, values in result.history]))
    axes[3].axhline(-2, color="k", linestyle="--", linewidth=1)
    axes[3].set(xlabel="step", title=f"Imbalance eigenvalues; loss {result.loss:.2e}")
    return figure


def _figure(columns: int = 2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * columns, 3.8), layout="constrained")
    return figure, figure.subplots(1, columns)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in (
        ("coding_rate", coding_rate_figure()),
        ("expansion", expansion_figure()),
        ("balance", balance_figure()),
    ):
        figure.savefig(folder / f"{name}.png", dpi=120)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "figures"))
