"""train/experiments/relu_teacher.py at toy size."""

from pathlib import Path

import pytest
from scripts import call_script

from aotadmm_timm.runs.records import read_record


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--scales 0.1 1 --imbalances -1 0 1 --weights 0.05 --seeds 2 --dim 20 --pairs 4 --samples 60 --steps 300"
    script = "train/experiments/relu_teacher.py"
    call_script(monkeypatch, script, *flags.split(), "--output", str(tmp_path / "out"))
    record = read_record(tmp_path / "out" / "experiment_relu_teacher.jsonl")
    assert record.command == f"python {script} {flags}"
    assert "output" not in record.config
    assert (tmp_path / "out" / "experiment_relu_teacher.png").stat().st_size > 10_000
    students = 2 * 3 + 2  # a scale with each imbalance, and with each weight
    assert len(record.epochs) == students * len({row["step"] for row in record.epochs})
    start = [row for row in record.epochs if row["step"] == 0]
    assert all(row["kernel_distance"] == pytest.approx(0, abs=1e-6) for row in start)
    assert all(row["rank"] == pytest.approx(record.metrics["rank at the start"], abs=1e-5) for row in start)
    assert 0.3 < record.metrics["rank at the start"] < 0.5  # neurons come in pairs
    end = [row for row in record.epochs if row["step"] == 300]
    assert all(after["loss"] < before["loss"] for before, after in zip(start, end, strict=True))
    small, large = (record.metrics[f"scale {scale}"] for scale in ("0.1", "1"))
    assert small["kernel distance by imbalance"][1] > 10 * large["kernel distance by imbalance"][1]  # rich and lazy
    assert small["ranks by weight"]["0.05"] > small["ranks by weight"]["0.0"]
