"""train/speedrun.py: two real phases of two processes, the second with finer patches; and a run whose time is over."""

import json
from pathlib import Path

import pytest
import yaml
from scripts import load_script, run_script

from aotadmm_timm.cli import parse
from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.config import read_yaml

BASE = {
    "model": "test_aot_admm", "num_samples": 40, "epochs": 1, "batch_size": 10, "img_size": 32, "num_local": 0,
    "projector": [16, 8], "num_slices": 8, "opt": "muon", "amp": "off", "probe_every": 100,
}  # fmt: skip
PHASES = [{"global_size": 24}, {"global_size": 16, "model_kwargs": {"patch_size": 4}, "lr": 1e-3}]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    path = tmp_path / "phases.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, "phases": PHASES}))
    return ["--phases", str(path), "--dataset", "digits", "--output", str(tmp_path / "run")]


def test_every_phase_starts_from_the_one_before(arguments: list[str], tmp_path: Path) -> None:
    script = load_script("train/speedrun.py")
    config = parse(script.Config, [*arguments, "--seed", "3"])
    first, second = script.phase_options(config)
    own = {"dataset": "digits", "data_dir": None, "dataset_download": False, "seed": 3, "evaluate": False}
    folder = tmp_path / "run"
    assert first == {**BASE, **PHASES[0], **own, "output": str(folder / "1")}
    assert second == {
        **BASE, **PHASES[1], **own, "output": str(folder / "2"), "initial_checkpoint": str(folder / "1")
    }  # fmt: skip


@pytest.mark.slow
def test_phases_follow_one_another_and_the_last_is_scored(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script("train/speedrun.py", *arguments, "--held-out", "--seed", "3")
    first, second = (read_yaml(tmp_path / "run" / name / "config.yaml") for name in ("1", "2"))
    assert (first["world"], first["seed"], first["global_size"]) == (2, 3, 24)
    assert second["initial_checkpoint"] == str(tmp_path / "run" / "1")
    assert second["model_kwargs"] == {"patch_size": 4}
    kept = json.loads((tmp_path / "run" / "speedrun.json").read_text())
    assert kept["scored_on"] == "held-out training images"
    assert kept["scores"]["train_images"] + kept["scores"]["test_images"] == 1438
    assert 0.05 < kept["scores"]["linear"] < 1
    *_, row = capsys.readouterr().out.strip().splitlines()
    assert f"| {100 * kept['scores']['linear']:.2f} |" in row


def test_a_run_that_takes_too_long_is_no_record(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the time was over in phase 1: no record"):
        run_script("train/speedrun.py", *arguments, "--minutes", "0.01")
    assert not (tmp_path / "run" / "speedrun.json").exists()
