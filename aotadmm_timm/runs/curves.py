"""The first thing a person opens: loss terms and probe accuracy over the epochs, drawn from log.jsonl."""

import os
import textwrap
import time
from pathlib import Path

from aotadmm_timm.runs.folder import read_log

_NOT_TERMS = {"step", "epoch", "lr", "images_per_s"}
# What `expansion_diagnostics` logs, by panel.
_EXPANSION = {
    "coding rate R of the embeddings, and R(I)": ("expansion_coding_rate", "expansion_coding_rate_isotropic"),
    "SIGReg of the last batch, its covariance part, the rest": (
        "expansion_sigreg", "expansion_sigreg_covariance", "expansion_sigreg_rest",
    ),
    "tr Sigma / d of the embeddings": ("expansion_trace_per_dim",),
}  # fmt: skip
_ACCURACIES = {
    "offline_knn20": "offline kNN on a held-out tenth of train",
    "online_probe": "online linear probe on training views",
    "train_accuracy": "training images as augmented",
    "test_accuracy": "test",
}


class CurvesInTraining:
    """Draws `curves.png` when called, if the last time is a minute or more ago: drawing costs about a second."""

    def __init__(self, run: Path, every: float = 60.0) -> None:
        self.run, self.every, self.drawn = run, every, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self.drawn >= self.every:
            draw_curves(self.run)
            self.drawn = time.monotonic()


def draw_curves(run: Path) -> Path:
    """Write `curves.png`: one panel per loss term, one for the learning rate, one for accuracies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    rows = read_log(run / "log.jsonl")
    keys = list(dict.fromkeys(k for row in rows for k in row if k not in _NOT_TERMS))
    accuracies = [k for k in keys if k in _ACCURACIES]
    panels = [(k, [k]) for k in keys if k not in accuracies and not k.startswith("expansion_")]
    panels += [("learning rate", ["lr"])]
    panels += [(title, present) for title, group in _EXPANSION.items() if (present := [k for k in group if k in keys])]
    panels += [("accuracy: " + ", ".join(_ACCURACIES[k] for k in accuracies), accuracies)] if accuracies else []
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure: Figure
    figure, axes = plt.subplots(lines, columns, figsize=(5 * columns, 3.2 * lines), squeeze=False, layout="constrained")
    last = max((r["epoch"] for r in rows), default=1)
    per_epoch = max((r["step"] for r in rows), default=1) / last
    for axis, (title, drawn) in zip(axes.flat, panels, strict=False):
        for key in drawn:
            points = [(r["step"] / per_epoch, r[key]) for r in rows if key in r]
            marker = "o" if key in ("offline_knn20", "test_accuracy") else None
            axis.plot([x for x, _ in points], [y for _, y in points], label=key, marker=marker, markersize=3)
        axis.set_title("\n".join(textwrap.wrap(title, 60)), fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
        if len(drawn) > 1:
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
