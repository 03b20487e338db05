"""train/experiments/linear_balance.py at toy size."""

from pathlib import Path

import pytest
from scripts import call_script

from aotadmm_timm.runs.records import read_record


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--imbalances -1 0 1 --width 4 --rank 2 --start 0.05 --time 8 --steps 200"
    call_script(monkeypatch, "train/experiments/linear_balance.py", *flags.split(), "--output", str(tmp_path))
    record = read_record(tmp_path / "experiment_linear_balance.jsonl")
    assert (tmp_path / "experiment_linear_balance.png").stat().st_size > 10_000
    found = record.metrics
    assert found["closed form off by"] < 1e-5
    assert found["imbalance drifts by"] < 1e-5
    assert found["regularized imbalance off by"] < 1e-4
    ranks = found["encoder rank at the end"]
    assert ranks["-1.0"] > 3.5  # full
    assert ranks["1.0"] < 2.1  # the task's
    assert found["smallest eigenvalue of W1 W1^T at the end"]["-1.0"] == pytest.approx(1, abs=1e-3)
    assert found["loss at the end"]["-1.0"] == pytest.approx(found["loss at the end"]["1.0"], rel=1e-3)
    assert {row["flow"] for row in record.epochs} == {"balanced", "regularized"}
