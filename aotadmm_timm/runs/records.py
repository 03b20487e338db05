"""What a finished run is remembered by: configuration, scores, and one row of its log per epoch.

A record in the repository is a small .jsonl file: a first line {"name", "command", "config", "metrics"}, then one line
per epoch with the mean of every logged number. Where the data lay and the run went to is left out.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import read_yaml
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import known
from aotadmm_timm.runs.folder import read_log, write_text
from aotadmm_timm.runs.places import placeless, placeless_command


@dataclass(frozen=True)
class Record:
    """`epochs` has one dict per epoch, with the key "epoch" and the means of what was logged."""

    name: str
    command: str
    config: dict[str, Any]
    metrics: dict[str, Any]
    epochs: list[dict[str, float]]


def read_record(path: str | Path) -> Record:
    """A record of a run folder, or one that `write_record` made.

    Raises: UserError if the path holds neither, or the run has not finished.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "config.yaml").is_file():
            raise UserError(f"{path}: no run in it (no config.yaml)")
        if not (path / "metrics.json").is_file():
            raise UserError(f"{path}: the run has not finished (no metrics.json)")
        metrics = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
        left_out = known("published", holds=False)
        config = {k: v for k, v in read_yaml(path / "config.yaml").items() if k not in left_out}
        command = str(metrics.pop("command", ""))
        return Record(path.resolve().name, command, config, metrics, per_epoch(read_log(path / "log.jsonl")))
    if not path.is_file():
        raise UserError(f"{path}: no such run folder or record")
    try:
        head, *epochs = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        return Record(head["name"], head["command"], head["config"], head["metrics"], epochs)
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a record of a run") from None


def per_epoch(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Means over the steps of each epoch, to five digits: a row is the mean of the steps since the last one."""
    epochs: dict[int, dict[str, list[tuple[int, float]]]] = {}
    last: dict[str, int] = {}
    for row in rows:
        values = epochs.setdefault(row["epoch"], {})
        for key, value in row.items():
            if key not in ("epoch", "step"):
                values.setdefault(key, []).append((row["step"] - last.get(key, 0), value))
                last[key] = row["step"]
    return [
        {"epoch": epoch, **{key: float(f"{_weighted(pairs):.5g}") for key, pairs in values.items()}}
        for epoch, values in sorted(epochs.items())
    ]


def _weighted(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


def write_record(record: Record, folder: Path) -> Path:
    """Write `record` into `folder`, without the places of this machine; returns the file.

    Raises: UserError if the folder holds another record of that name.
    """
    config = {k: placeless(v) for k, v in record.config.items()}
    command = placeless_command(record.command)
    head = {"name": record.name, "command": command, "config": config, "metrics": _rounded(record.metrics)}
    path = folder / f"{record.name}.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in (head, *record.epochs))
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path}: holds another run of that name; remove it, or rename the run folder")
    write_text(path, text)
    return path


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value
