"""The first thing a person opens: loss terms and probe accuracy over the epochs, drawn from log.jsonl."""

import os
from pathlib import Path

from .run_folder import read_log

_NOT_TERMS = {"step", "epoch", "lr", "images_per_s"}


def draw_curves(run: Path) -> Path:
    """Write `curves.png`: one panel per loss term, one for the learning rate, one for the probes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    rows = read_log(run / "log.jsonl")
    terms = [k for row in rows[:1] for k in row if k not in _NOT_TERMS]
    probes = sorted({k for row in rows for k in row if k.startswith("probe_") or k.startswith("online_")})
    terms = [t for t in terms if t not in probes]
    panels: list[tuple[str, list[str]]] = [(t, [t]) for t in terms] + [("learning rate", ["lr"])]
    if probes:
        panels.append(("probe accuracy (held-out tenth of train)", probes))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure: Figure
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 3.2 * lines), squeeze=False, layout="constrained")
    last = max((r["epoch"] for r in rows), default=1)
    per_epoch = max((r["step"] for r in rows), default=1) / last
    for axis, (title, keys) in zip(axes.flat, panels, strict=False):
        for key in keys:
            points = [(r["step"] / per_epoch, r[key]) for r in rows if key in r]
            marker = "o" if key in probes else None
            axis.plot([x for x, _ in points], [y for _, y in points], label=key, marker=marker, markersize=3)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
        if len(keys) > 1:
            axis.legend(fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(run.name)
    path = run / "curves.png"
    aside = run / "curves.part.png"
    figure.savefig(aside, dpi=110)
    plt.close(figure)
    os.replace(aside, path)
    return path
