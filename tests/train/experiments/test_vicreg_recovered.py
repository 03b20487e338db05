"""train/experiments/vicreg_recovered.py: its batches are where they should be, and the whole at toy size."""

from pathlib import Path

import pytest
import torch
from scripts import call_script, load_script

from aotadmm_timm.runs.records import read_record

SCRIPT = "train/experiments/vicreg_recovered.py"


def test_batches_have_the_distance_asked_for() -> None:
    script = load_script(SCRIPT)
    z = script.batch(script.Config(dim=8, samples=64), 0.5)
    gap = torch.cov(z.T, correction=0) - torch.eye(8, dtype=torch.float64)
    assert gap.norm().item() / 8**0.5 == pytest.approx(0.5)
    torch.testing.assert_close(z.mean(0), torch.full((8,), 0.05, dtype=torch.float64))


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--slices 4 1024 --distances 0.2 --dim 6 --samples 80 --steps 60 --lr 0.05 --descent-slices 32"
    call_script(monkeypatch, SCRIPT, *flags.split(), "--output", str(tmp_path))
    record = read_record(tmp_path / "experiment_vicreg_recovered.jsonl")
    assert (tmp_path / "experiment_vicreg_recovered.png").stat().st_size > 10_000
    few, many = (row for row in record.epochs if row["part"] == "alignment")
    assert few["with_limit"] < many["with_limit"]
    assert many["with_limit"] > 0.98
    ends = {row["loss"]: row for row in record.epochs if row["part"] == "descent" and row["step"] == 60}
    assert ends["moments along slices"]["covariance"] < 0.05
    assert ends["VICReg's two terms"]["mean"] > 5 * ends["moments along slices"]["mean"]
    x = {row["after"]: row["epps_pulley"] for row in record.epochs if row["part"] == "X"}
    assert x["moments along slices"] > 10 * x["Epps-Pulley along slices"]
    assert x["moments along slices"] > 1.05  # more than a Gaussian sample has
