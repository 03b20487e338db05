"""Opening a run: refusals before anything is written, the configuration a resumed run keeps, trackers."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from aotadmm_timm.cli import as_dict
from aotadmm_timm.engine.resume import begin, claim, open_run
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import TrainConfig
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.folder import RunFolder

EMPTY: dict[str, Any] = {"state": {}, "window": [], "rng": None}


def start(cfg: TrainConfig, **extra: Any) -> tuple[RunFolder, dict[str, Any] | None]:
    run = claim(cfg, "name")
    config = {**as_dict(cfg), "convention": {"w": 1.0}, "world": 1, **extra}
    return run, open_run(cfg, run, config, steps_per_epoch=5)


def test_a_new_run_then_its_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = TrainConfig(output=str(tmp_path / "run"))
    run, snapshot = start(cfg)
    assert snapshot is None
    stored = yaml.safe_load((run.path / "config.yaml").read_text())
    assert stored["lr"] == 1e-3
    with pytest.raises(UserError, match="already holds a run"):
        claim(cfg, "name")
    again = replace(cfg, resume="auto")
    assert start(again)[1] is None
    assert "no checkpoint yet: starting at step 0" in capsys.readouterr().out
    checkpoints.save(run.checkpoints, {**EMPTY, "step": 7, "config": stored})
    # what does not change a step may differ, and so may what a run works out for itself
    other = replace(again, stop_after=3, num_workers=0, device="cpu", compile=True)
    _, snapshot = start(other, convention={"w": 2.0})
    assert snapshot is not None
    assert snapshot["step"] == 7
    assert "resuming at step 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.5}, "--resume: lr is 0.5 here but 0.001 in the checkpoint"),
        ({"seed": 1}, "seed is 1 here but 0"),
        ({"epochs": 200}, "epochs is 200 here but 100"),
    ],
)
def test_a_resumed_run_keeps_its_configuration(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    cfg = TrainConfig(output=str(tmp_path / "run"))
    run, _ = start(cfg)
    stored = (run.path / "config.yaml").read_text()
    checkpoints.save(run.checkpoints, {**EMPTY, "step": 7, "config": yaml.safe_load(stored)})
    with pytest.raises(UserError, match=message):
        start(replace(cfg, resume="auto", **change))
    with pytest.raises(UserError, match="world is 2 here but 1"):
        start(replace(cfg, resume="auto"), world=2)
    assert (run.path / "config.yaml").read_text() == stored


def test_results_of_an_earlier_end_do_not_outlive_the_next_step(tmp_path: Path) -> None:
    """Else compare.py and push.py would take the scores after 2 epochs for those of the whole run."""
    cfg = TrainConfig(output=str(tmp_path / "run"), epochs=4, stop_after=2)
    run, _ = start(cfg)
    stored = yaml.safe_load((run.path / "config.yaml").read_text())
    checkpoints.save(run.checkpoints, {**EMPTY, "step": 10, "config": stored})
    run.write_metrics({"pretrained": {"linear": 0.5}})
    run.encoder.mkdir()
    start(replace(cfg, resume="auto"))  # nothing to do: they stay
    assert run.encoder.exists()
    with pytest.raises(UserError, match="--stop-after 1: the checkpoint has 10 steps already, epoch 1 ended at 5"):
        start(replace(cfg, resume="auto", stop_after=1))
    assert (run.path / "metrics.json").exists()
    start(replace(cfg, resume="auto", stop_after=None))
    assert not (run.path / "metrics.json").exists()
    assert not run.encoder.exists()


def test_a_run_is_not_continued_into_the_folder_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a = TrainConfig(output="a")
    run, _ = start(a)
    stored = yaml.safe_load((run.path / "config.yaml").read_text())
    checkpoints.save(run.checkpoints, {**EMPTY, "step": 7, "config": stored})
    start(TrainConfig(output="b", lr=0.5))
    before = (tmp_path / "b" / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"lr is 0\.001 here but 0\.5 in the run in b; .*--output"):
        start(replace(a, output="b", resume="a"))
    assert (tmp_path / "b" / "config.yaml").read_text() == before
    for source in ("a", "a/checkpoints/last.pt"):  # without --output the run goes on where it is
        again, snapshot = start(replace(a, output=None, resume=source))
        assert snapshot is not None
        assert again.path == Path("a")
    assert start(replace(a, output="c", resume="a"))[0].path == Path("c")


def test_more_images_than_before_are_noticed(tmp_path: Path) -> None:
    """Order and schedule follow from their number."""
    cfg = TrainConfig(output=str(tmp_path / "run"))
    run, _ = start(cfg, train_images=100)
    stored = yaml.safe_load((run.path / "config.yaml").read_text())
    checkpoints.save(run.checkpoints, {**EMPTY, "step": 7, "config": stored})
    with pytest.raises(UserError, match="train_images is 101 here but 100"):
        start(replace(cfg, resume="auto"), train_images=101)


def test_without_wandb_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    cfg = TrainConfig(output=str(tmp_path / "run"), wandb="project")
    with pytest.raises(UserError, match=r"--wandb: Weights & Biases cannot be imported .*pip install wandb"):
        start(cfg)
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunFolder(tmp_path)
    for step in (1, 2):
        run.log({"step": step, "epoch": 1, "loss": 1 / step, "note": "words"})
    run.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("device", ["gpu", "meta", "cpu:"])
def test_a_device_that_cannot_be_used_is_named(device: str) -> None:
    with pytest.raises(ValueError, match=f"--device {device}: .*; expected cpu, cuda or cuda:N") as caught:
        begin(TrainConfig(device=device))
    assert "\n" not in str(caught.value)
