"""How figures look: told apart by the color-blind and in gray, readable at half size; and how they are written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Okabe and Ito's colors, ordered so that neighbors differ in lightness too; with a line style and a marker of its own
# each series survives a gray print.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BASELINE = {"color": "#666666", "linewidth": 1.2}


def series(number: int) -> dict[str, Any]:
    """matplotlib's color and line style of series `number`, counted from 0."""
    return {"color": _COLORS[number % len(_COLORS)], "linestyle": _LINES[number % len(_LINES)], "linewidth": 2.0}


def marker(number: int) -> str:
    """The marker of series `number`, for few points."""
    return _MARKERS[number % len(_MARKERS)]


@contextmanager
def panels(count: int, columns: int = 3) -> Iterator[tuple[Any, list[Any]]]:
    """A figure of `count` panels in rows of `columns`, closed at the end: (figure, axes)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(columns, count)
    rows = -(-count // columns)
    with plt.rc_context({"font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(
            rows, columns, figsize=(4.8 * columns, 3.3 * rows + 0.4), squeeze=False, layout="constrained"
        )
        drawn = list(axes.flat)
        for axis in drawn[count:]:
            axis.set_visible(False)
        for axis in drawn[:count]:
            axis.grid(alpha=0.3)
        try:
            yield figure, drawn[:count]
        finally:
            plt.close(figure)


def save(figure: Any, path: Path) -> Path:
    """Write a figure aside and rename it: a reader never sees half of one."""
    aside = path.with_name(f"{path.stem}.part{path.suffix}")
    figure.savefig(aside, dpi=110)
    os.replace(aside, path)
    return path
