"""The first thing a person opens: accuracy, loss terms and learning rate over the epochs, drawn from log.jsonl."""

import json
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import read_yaml
from aotadmm_timm.runs import figure_style
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
    "offline_knn20": "kNN, offline, on a held-out tenth of train",
    "online_probe": "linear probe, online, on training views",
    "train_accuracy": "training images as augmented",
    "test_accuracy": "test",
}
_SCORES = ("pretrained", "untrained", "pixels")


class CurvesInTraining:
    """Draws `curves.png` when called, if the last time is a minute or more ago: drawing costs about a second."""

    def __init__(self, run: Path, every: float = 60.0) -> None:
        self.run, self.every, self.drawn = run, every, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self.drawn >= self.every:
            draw_curves(self.run)
            self.drawn = time.monotonic()


def draw_curves(run: Path) -> Path:
    """Write `curves.png`: a panel for accuracies first, then one for each loss term, the learning rate, diagnostics.

    Horizontal lines in the first are the linear probes of the final table: pretrained, untrained, pixels.
    """
    rows = read_log(run / "log.jsonl")
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in _NOT_TERMS))
    shown = _panels(keys)
    metrics = _read(run / "metrics.json")
    last = max((row["epoch"] for row in rows), default=1)
    per_epoch = max((row["step"] for row in rows), default=1) / last
    with figure_style.panels(len(shown)) as (figure, axes):
        for axis, (title, drawn) in zip(axes, shown, strict=True):
            for number, key in enumerate(drawn):
                points = [(row["step"] / per_epoch, row[key]) for row in rows if key in row]
                few = figure_style.marker(number) if len(points) <= 40 else None
                label = _ACCURACIES.get(key, key.removeprefix("expansion_"))
                axis.plot(
                    *zip(*points, strict=True), label=label, marker=few, markersize=4, **figure_style.series(number)
                )
            if title == "accuracy":
                _baselines(axis, metrics)
            axis.set_title("\n".join(textwrap.wrap(title, 48)))
            axis.set_xlabel("epoch")
            if len(drawn) > 1 or title == "accuracy":
                axis.legend(fontsize=9)
        figure.suptitle("\n".join(textwrap.wrap(describe_run(run, metrics), 60 * min(3, len(shown)))), fontsize=13)
        return figure_style.save(figure, run / "curves.png")


def _panels(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Title and logged numbers of each panel."""
    accuracies = [key for key in keys if key in _ACCURACIES]
    terms = [key for key in keys if key not in accuracies and not key.startswith("expansion_")]
    found = [("accuracy", accuracies)] if accuracies else []
    found += [(key, [key]) for key in terms] + [("learning rate", ["lr"])]
    return found + [(title, here) for title, group in _EXPANSION.items() if (here := [k for k in group if k in keys])]


def _baselines(axis: Any, metrics: Mapping[str, Any]) -> None:
    for name, line in zip(_SCORES, ("-", "--", ":"), strict=True):
        if name in metrics:
            share = metrics[name]["linear"]
            label = f"linear probe on {metrics['evaluated_on']}, {name}: {100 * share:.1f} %"
            axis.axhline(share, linestyle=line, label=label, **figure_style.BASELINE)


def describe_run(run: Path, metrics: Mapping[str, Any]) -> str:
    """Model, data and budget of a run, in one line."""
    config = read_yaml(run / "config.yaml") if (run / "config.yaml").is_file() else {}
    if not config:
        return run.name
    images, batch = config.get("train_images"), config.get("batch_size", 0) * config.get("world", 1)
    parts = [f"{config.get('method')}: {config.get('architecture')} on {config.get('dataset')}"]
    parts += [f"{config.get('epochs')} epochs" + (f" of {images:,} images" if images else "") + f", batch {batch}"]
    parts += [f"{metrics['seconds'] / 60:.0f} minutes"] if "seconds" in metrics else []
    return ", ".join([*parts, f"seed {config.get('seed')}"])


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
