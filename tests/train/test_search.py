"""train/search.py: a search of two real trials, one of which cannot work, stopped and taken up again."""

from pathlib import Path

import pytest
import yaml
from scripts import run_script

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.trials import read_trials

BASE = {
    "model": "test_aot_admm", "dataset": "digits", "num_samples": 40, "epochs": 1, "batch_size": 20,
    "global_size": 16, "num_local": 0, "projector": [16, 8], "num_slices": 8, "opt": "muon", "amp": "off",
}  # fmt: skip
TRIALS = {
    "narrow": {"cost": 0.5, "projector": [8], "normalize": True, "opt_kwargs": {"momentum": 0.9}},
    "impossible": {"opt_kwargs": {"momentum": 2}},
}


@pytest.fixture
def search(tmp_path: Path) -> list[str]:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "trials": TRIALS}, sort_keys=False))
    return ["--trials", str(path), "--output", str(tmp_path / "runs"), "--records", str(tmp_path / "search.jsonl")]


def test_trials_become_records_table_and_figure(search: list[str], tmp_path: Path) -> None:
    run_script("train/search.py", *search, "--only", "impossible")
    run_script("train/search.py", *search)  # what has a record is not run again
    impossible, narrow = read_trials(tmp_path / "search.jsonl")
    assert (impossible.name, narrow.name, narrow.cost, narrow.seed) == ("impossible", "narrow", 0.5, 0)
    assert "--normalize" in narrow.command
    assert "--projector 8 " in narrow.command
    assert str(tmp_path) not in narrow.command
    assert 0 < narrow.scores["linear"] <= 1
    assert "momentum must be at least 0 and below 1, got 2" in str(impossible.failed)
    assert impossible.scores == {}
    results = tmp_path / "RESULTS.md"
    results.write_text("before\n<!-- search -->\nold\n<!-- end -->\nafter\n")
    run_script("train/search.py", *search, "--results", results)
    lines = results.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    assert sum(line.startswith("| ") for line in lines) == 3
    assert (tmp_path / "search.png").stat().st_size > 1000


def test_an_unknown_trial_is_named(search: list[str]) -> None:
    with pytest.raises(UserError, match="--only typo: no such trial"):
        run_script("train/search.py", *search, "--only", "typo")
