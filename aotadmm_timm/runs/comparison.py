"""Many runs side by side: groups by what differs, mean and spread, tables and one figure."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.options import known
from aotadmm_timm.runs import figure_style
from aotadmm_timm.runs.records import Record

# title, path in metrics.json, factor, digits
_COLUMNS = (
    ("accuracy %", ("accuracy",), 100, 2),
    ("kNN %", ("pretrained", "knn20"), 100, 2),
    ("linear %", ("pretrained", "linear"), 100, 2),
    ("10 labels/class %", ("pretrained", "few_label_mean"), 100, 2),
    ("RankMe", ("pretrained", "rankme"), 1, 1),
    ("cosine", ("pretrained", "cosine"), 1, 3),
    ("images/s", ("images_per_second",), 1, 0),
    ("minutes", ("seconds",), 1 / 60, 1),
)
_CURVES = ("loss", "offline_knn20", "online_probe", "test_accuracy", "train_accuracy")


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed only. `differs`: the values of the keys in which groups differ."""

    differs: dict[str, Any]
    records: list[Record]

    @property
    def label(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in self.differs.items()) or self.records[0].name


def group(records: Sequence[Record]) -> list[Group]:
    """Groups in the order of their first run."""
    repeated = known("repeats") | {"evaluate"}
    keys = [
        key
        for key in dict.fromkeys(k for r in records for k in r.config)
        if key not in repeated and len({_option(r, key) for r in records}) > 1
    ]
    groups: dict[str, Group] = {}
    for record in records:
        differs = {key: _option(record, key) for key in keys}
        groups.setdefault(str(differs), Group(differs, [])).records.append(record)
    return list(groups.values())


def table(groups: Sequence[Group], *, always: Sequence[str] = ("model", "dataset", "epochs")) -> list[list[str]]:
    """Header and one row per group: what differs, number of runs, mean +- sample standard deviation, commit.

    Args:
        always: keys that are shown even if all groups agree in them.
    """
    keys = list(dict.fromkeys([*always, *(key for g in groups for key in g.differs)]))
    columns = [c for c in _COLUMNS if any(_value(r, c[1]) is not None for g in groups for r in g.records)]
    rows = [[*keys, "n", *(title for title, *_ in columns), "commit"]]
    for g in groups:
        cells = [_option(g.records[0], key) for key in keys] + [str(len(g.records))]
        for _, path, factor, digits in columns:
            values = [factor * v for r in g.records if (v := _value(r, path)) is not None]
            cell = f"{statistics.mean(values):.{digits}f}" if values else "-"
            cells.append(cell + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""))
        commits = dict.fromkeys(str(r.metrics.get("environment", {}).get("commit")) for r in g.records)
        rows.append([*cells, ", ".join(c[:7] for c in commits)])
    return rows


def _option(record: Record, key: str) -> str:
    """An option as a cell; of a run that was stopped before the end of its schedule, how far it came.

    A fine-tuning that was given no model has its checkpoint's.
    """
    value, stop = record.config.get(key), record.config.get("stop_after")
    if key == "model" and value is None:
        value = record.config.get("architecture")
    return f"{stop} of {value}" if key == "epochs" and stop and stop < value else str(value)


def _value(record: Record, path: Sequence[str]) -> float | None:
    value: Any = record.metrics
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    """Comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_latex(rows: Sequence[Sequence[str]]) -> str:
    """A `tabular` with booktabs rules."""
    special = {c: "\\" + c for c in "&%$#_{}"} | {"±": "$\\pm$", "\\": "\\textbackslash{}", "~": "\\textasciitilde{}"}

    def line(row: Sequence[str]) -> str:
        return " & ".join("".join(special.get(c, c) for c in cell) for cell in row) + " \\\\"

    body = [line(row) for row in rows]
    start, end = f"\\begin{{tabular}}{{{'l' * len(rows[0])}}}", "\\end{tabular}"
    return "\n".join([start, "\\toprule", body[0], "\\midrule", *body[1:], "\\bottomrule", end, ""])


def draw(groups: Sequence[Group], path: Path) -> None:
    """Curves over the epochs, a panel for each number: the mean of a group as a line, its seeds' range as a band."""
    keys = [k for k in _CURVES if any(k in e for g in groups for r in g.records for e in r.epochs)] or ["loss"]
    with figure_style.panels(len(keys), len(keys)) as (figure, axes):
        for axis, key in zip(axes, keys, strict=True):
            for number, g in enumerate(groups):
                values: dict[float, list[float]] = {}
                for epoch, value in ((e["epoch"], e[key]) for r in g.records for e in r.epochs if key in e):
                    values.setdefault(epoch, []).append(value)
                epochs = sorted(values)
                style = figure_style.series(number)
                if len(g.records) > 1:
                    low, high = ([pick(values[x]) for x in epochs] for pick in (min, max))
                    axis.fill_between(epochs, low, high, color=style["color"], alpha=0.2, linewidth=0)
                means = [statistics.mean(values[x]) for x in epochs]
                axis.plot(epochs, means, label=f"{g.label} (n = {len(g.records)})", **style)
            axis.set_title(key)
            axis.set_xlabel("epoch")
        axes[0].legend(fontsize=9)
        figure_style.save(figure, path)
