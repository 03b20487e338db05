"""The trials of a search in one small file, a line for each, and the path through them as a table and a figure."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.folder import write_text

COLUMNS = (("kNN %", "knn20", 2), ("linear %", "linear", 2), ("RankMe", "rankme", 1), ("cosine", "cosine", 2))
_PERCENT = ("knn20", "linear")


@dataclass(frozen=True)
class Trial:
    """One setting: `options` are what it changes in the recipe of its search.

    `cost` is its CPU time over that of a reference; `failed` the message of a run that did not end.
    """

    name: str
    options: dict[str, Any]
    seed: int = 0
    command: str = ""
    commit: str | None = None
    cost: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    failed: str | None = None


def read_trials(path: Path) -> list[Trial]:
    """The trials of a file, in the order in which they were made; none if there is no file.

    Raises: UserError naming the line that is no trial.
    """
    trials = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [], 1):
        try:
            trials.append(Trial(**json.loads(line)))
        except (ValueError, TypeError):
            raise UserError(f"{path}: line {number} is not a trial of a search") from None
    return trials


def write_trials(path: Path, trials: Sequence[Trial]) -> None:
    """All trials of a file anew; what a trial leaves at its default is left out."""
    empty = Trial("", {})
    lines = [
        json.dumps({k: v for k, v in asdict(trial).items() if k == "options" or v != getattr(empty, k)})
        for trial in trials
    ]
    write_text(path, "".join(line + "\n" for line in lines))


def trial_rows(trials: Sequence[Trial]) -> list[list[str]]:
    """Header and a row per trial: its changes, seed, cost, scores, or why there are none."""
    rows = [["trial", "changes", "seed", "cost", *(title for title, *_ in COLUMNS), "commit"]]
    for trial in trials:
        changes = ", ".join(f"{key} {_short(value)}" for key, value in trial.options.items())
        if trial.failed:
            scores = [f"failed: {trial.failed}"] + [""] * (len(COLUMNS) - 1)
        else:
            scores = [f"{(100 if key in _PERCENT else 1) * trial.scores[key]:.{digits}f}" for _, key, digits in COLUMNS]
        cost = "-" if trial.cost is None else f"{trial.cost:.1f}"
        rows.append([trial.name, changes, str(trial.seed), cost, *scores, (trial.commit or "-")[:7]])
    return rows


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def draw_path(trials: Sequence[Trial], path: Path) -> None:
    """Linear probe over the trials in their order, with the best so far; what failed is a cross at the bottom."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(11, 5.5), layout="constrained")
    best, steps = float("-inf"), []
    low = min((100 * t.scores["linear"] for t in trials if t.scores), default=0.0)
    for number, trial in enumerate(trials):
        if not trial.scores:
            axis.plot(number, low - 1, "x", color="C3")
            axis.annotate(
                trial.name, (number, low - 1), rotation=60, fontsize=7, xytext=(3, 3), textcoords="offset points"
            )
            continue
        linear = 100 * trial.scores["linear"]
        better = linear > best
        best = max(best, linear)
        steps.append((number, best))
        axis.plot(number, linear, "o", color="C0" if better else "0.6", markersize=5)
        axis.annotate(trial.name, (number, linear), rotation=60, fontsize=7, xytext=(3, 3), textcoords="offset points")
    axis.step([x for x, _ in steps], [y for _, y in steps], where="post", color="C0", linewidth=1)
    axis.set_xlabel("trial")
    axis.set_ylabel("linear probe, held-out training images (%)")
    axis.grid(alpha=0.3)
    axis.margins(x=0.06, y=0.15)
    aside = path.with_name(f"{path.stem}.part{path.suffix}")
    figure.savefig(aside, dpi=110)
    plt.close(figure)
    os.replace(aside, path)
