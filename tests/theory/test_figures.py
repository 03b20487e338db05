"""The figures of the theory are drawn (that of the expansion has its own test)."""

from pathlib import Path

import numpy as np

from aotadmm_timm.theory.figures import balance_figure, coding_rate_figure


def test_figures_are_drawn(tmp_path: Path) -> None:
    left, right = coding_rate_figure(tokens=12, dim=8, heads=2).axes
    rates = left.lines[0].get_ydata()
    assert (np.diff(rates) > 0).all()  # more directions, larger R
    steps = right.lines[0].get_ydata()
    assert (np.diff(steps) < 0).all()  # descent
    figure = balance_figure(steps=50)
    assert len(figure.axes[3].lines) == 9
    figure.savefig(tmp_path / "balance.png")
