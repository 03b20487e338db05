"""train/experiments/gaussian_probes.py at toy size."""

from pathlib import Path

import pytest
from scripts import call_script

from aotadmm_timm.runs.records import read_record


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--conditions 1 16 --shapes laplace --samples 60 --dim 3 --draws 300 --neighbors 400 --neighbor-draws 12"
    flags += " --queries 60"
    call_script(monkeypatch, "train/experiments/gaussian_probes.py", *flags.split(), "--output", str(tmp_path))
    record = read_record(tmp_path / "experiment_gaussian_probes.jsonl")
    assert (tmp_path / "experiment_gaussian_probes.png").stat().st_size > 10_000
    even, uneven = (row for row in record.epochs if row["probe"] == "linear")
    assert even["variance"] == pytest.approx(even["predicted_variance"], rel=0.2)
    assert uneven["variance"] > 1.5 * even["variance"]
    assert uneven["worst_bias"] > 1.5 * even["worst_bias"]
    near = {(row["shape"], row["condition"]): row for row in record.epochs if row["probe"] == "neighbors"}
    assert len(near) == 3
    assert near["gaussian", 1.0]["radius_bias"] < near["gaussian", 16.0]["radius_bias"]
