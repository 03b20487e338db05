"""train/experiments/few_directions.py: its failure is one, and the whole at toy size."""

from pathlib import Path

import pytest
import torch
from scripts import call_script, load_script

from aotadmm_timm.runs.records import read_record

SCRIPT = "train/experiments/few_directions.py"


def test_an_x_has_normal_marginals_and_no_covariance() -> None:
    script = load_script(SCRIPT)
    z = script.x_shaped(20_000, 4, torch.Generator().manual_seed(0))
    assert (torch.cov(z.T) - torch.eye(4)).abs().max() < 0.05
    torch.testing.assert_close(z[:, 0].abs(), z[:, 1].abs())
    assert script.in_plane(z, 0) > 50 * script.in_plane(z, 2)


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--dims 6 --directions 4 64 --seeds 1 --steps 80 --lr 0.05 --draws 20"
    call_script(monkeypatch, SCRIPT, *flags.split(), "--output", str(tmp_path))
    record = read_record(tmp_path / "experiment_few_directions.jsonl")
    assert (tmp_path / "experiment_few_directions.png").stat().st_size > 10_000
    ends = {(r["directions"], r["fresh"]): r for r in record.epochs if r["step"] == 80}
    starts = {(r["directions"], r["fresh"]): r for r in record.epochs if r["step"] == 0}
    assert len(ends) == 4
    assert ends[4, True]["x_plane"] < 0.6 * starts[4, True]["x_plane"]
    assert ends[4, True]["all"] < ends[4, False]["all"]  # fixed directions leave the others alone
    power = record.metrics["power"]
    assert power["2 dimensions, 4 directions"] > power["6 dimensions, 4 directions"]
