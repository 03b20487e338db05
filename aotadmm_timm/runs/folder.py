"""The folder of one run: configuration, log, metrics, curves, TensorBoard, checkpoints, encoder; rank 0 writes it."""

import json
import os
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.trackers import TensorBoard

if TYPE_CHECKING:  # records are read without torch
    from torch import nn

_MARKS = ("config.yaml", "log.jsonl", "checkpoints")


def write_text(path: Path, text: str) -> None:
    """Write aside and rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def images_per_second(log: Path) -> float | None:
    """Median over the rows of a log: what interruptions and a busy minute leave alone."""
    rates = [row["images_per_s"] for row in read_log(log) if "images_per_s" in row]
    return statistics.median(rates) if rates else None


class RunFolder:
    """Paths and writers of a run.

    Args:
        path: the folder; made when something is written.
        resume: whether it may hold a run already.
    Raises: UserError if it holds a run and `resume` is false.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--output {path}: is a file")
        if not resume and any((self.path / mark).exists() for mark in _MARKS):
            raise UserError(f"{path} already holds a run: --resume auto continues it, --output names another folder")
        self.trackers: list[Any] = [TensorBoard(self.path / "tb")]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def encoder(self) -> Path:
        return self.path / "encoder"

    @property
    def log_path(self) -> Path:
        return self.path / "log.jsonl"

    def write_config(self, config: dict[str, Any]) -> None:
        write_text(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False))

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        write_text(self.path / "metrics.json", json.dumps(metrics, indent=1) + "\n")

    def remove_results(self) -> None:
        """Remove metrics.json and encoder/, which belong to the end of a run."""
        (self.path / "metrics.json").unlink(missing_ok=True)
        shutil.rmtree(self.encoder, ignore_errors=True)

    def rewind_log(self, step: int) -> None:
        """Drop the rows after `step`: what a stopped run logged after its checkpoint is done again."""
        rows = [row for row in read_log(self.log_path) if row["step"] <= step]
        write_text(self.log_path, "".join(json.dumps(row) + "\n" for row in rows))

    def log(self, row: dict[str, Any]) -> None:
        """Append a row (it has a `step`) to log.jsonl, and show its numbers to the trackers."""
        with open(self.log_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        numbers = {k: v for k, v in row.items() if k not in ("step", "epoch") and isinstance(v, int | float)}
        for tracker in self.trackers:
            tracker.log(row["step"], numbers)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()

    def save_encoder(self, backbone: "nn.Module", *, model_args: dict[str, Any] | None = None) -> None:
        """The backbone in timm's `local-dir:` format: model.safetensors and config.json."""
        from timm.models import save_for_hf

        aside = self.path / "encoder.part"
        shutil.rmtree(aside, ignore_errors=True)
        save_for_hf(backbone, str(aside), model_args=model_args, safe_serialization=True)
        config = json.loads((aside / "config.json").read_text(encoding="utf-8"))
        config.get("model_args", {}).pop("num_classes", None)  # stands above; twice, transformers' TimmWrapper fails
        write_text(aside / "config.json", json.dumps(config, indent=2) + "\n")
        shutil.rmtree(self.encoder, ignore_errors=True)
        os.replace(aside, self.encoder)
