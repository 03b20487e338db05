"""Figures of the layer-wise measurements and maps; each returns a matplotlib Figure (needs the extra [train])."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PANELS = (
    ("compression", "compression R^c"),
    ("sparsity", "share of exact zeros"),
    ("primal_residual", "primal residual |Z - V| (RMS)"),
    ("dual_residual", "dual residual (RMS)"),
    ("objective", "augmented objective, Eq. (9)"),
    ("objective_falls", "images whose objective falls"),
    ("compression_falls", "images whose R^c falls"),
    ("coefficients", "coefficients a (-), b (--), c (:)"),
    ("gram_error_scaled", "|U^T U - I| (scale removed)"),
    ("output_cosine", "cosine of W_O and U"),
    ("gradient_cosine", "cosine of grad R^c and Z - MSSA(Z)"),
)


def layer_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Rows of `layer_curves` and `theory_gap` under a name each ("trained", "untrained"), one panel a quantity.

    Quantities that no row has are left out.
    """
    panels = [(key, title) for key, title in _PANELS if any(key in row for rows in curves.values() for row in rows)]
    columns = min(4, len(panels))
    figure, axes = _figure(columns, -(-len(panels) // columns), width=3.6, height=2.7)
    for axis, (key, title) in zip(axes, panels, strict=False):
        for index, rows in enumerate(curves.values()):
            points = [(row["layer"], row[key]) for row in rows if key in row]
            if not points:
                continue
            values = torch.tensor([value for _, value in points]).reshape(len(points), -1)
            for line, style in zip(values.T, ("-", "--", ":"), strict=False):
                axis.plot([x for x, _ in points], line, style, color=f"C{index}", marker=".")
        axis.set_title(title, fontsize=9)
    for index, name in enumerate(curves):
        axes[0].plot([], [], color=f"C{index}", label=name)
    axes[0].legend(fontsize=8)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel("layer", fontsize=9)
    return figure


def map_figure(pictures: Tensor, maps: Tensor, colours: Tensor) -> Any:
    """One row an image: the image, the PCA of its patches, the attention map of every head.

    pictures (B, 3, H, W) in [0, 1]; maps (B, K, h, w) from `attention_maps`; colours (B, h, w, 3) from `patch_pca`.
    """
    heads = maps.shape[1]
    figure, axes = _figure(2 + heads, len(pictures), width=1.1, height=1.15)
    for row, (picture, colour, weights) in enumerate(zip(pictures, colours, maps, strict=True)):
        panels = [("image", picture.permute(1, 2, 0)), ("PCA", colour)]
        panels += [(f"head {k + 1}", weights[k]) for k in range(heads)]
        for axis, (title, panel) in zip(axes[row * (2 + heads) :], panels, strict=False):
            axis.imshow(panel.clamp_min(0).numpy(), cmap="magma")
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title, fontsize=7)
    return figure


def spectrum_figure(spectra: Mapping[str, Tensor]) -> Any:
    """Singular values of sets of features over the largest, by name, on a logarithmic scale."""
    figure, (axis,) = _figure(1, 1, width=5.4, height=3.6)
    for name, values in spectra.items():
        shares = values / values[0].clamp_min(torch.finfo(values.dtype).tiny)
        axis.semilogy(range(1, len(values) + 1), shares.clamp_min(1e-8), label=f"{name} ({len(values)})")
    axis.set(xlabel="rank", ylabel="singular value / largest")
    axis.legend(fontsize=8)
    return figure


def _figure(columns: int, rows: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
