"""A run that is killed and resumed is the run that was not: weights bit for bit, and the log."""

import random
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import PATIENCE, Script

from aotadmm_timm.runs.folder import read_log

# Everything with a state: optimizer, EMA encoder, EMA target, ring buffers, BatchNorm, online probe, stochastic depth.
SCRIPT = """
import sys
from aotadmm_timm.cli import parse, run
from aotadmm_timm.engine.pretrain import pretrain
from aotadmm_timm.engine.pretrain_options import PretrainConfig
from aotadmm_timm.methods import LambdaJEPA

def build(backbone):
    return LambdaJEPA(backbone, target="ema", projector=(32, 16), projector_buffer=2, backbone_buffer=2)

run(lambda: pretrain(parse(PretrainConfig), "lambda", build))
"""
MODEL = "--model test_aot_admm --model-kwargs drop_path_rate=0.3 --ema 0.9"
DATA = "--num-samples 128 --batch-size 32 --num-local 2"
HOW = "--log-every 2 --probe-every 2 --no-evaluate --amp off --device cpu"
ARGUMENTS = f"{MODEL} {DATA} {HOW}".split()
STEPS_PER_EPOCH = 4


class Runner:
    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs = folder, epochs
        (folder / "script.py").write_text(SCRIPT)

    def arguments(self, name: str, *extra: str) -> list[str]:
        return [*ARGUMENTS, "--epochs", str(self.epochs), "--output", str(self.folder / name), *extra]

    def start(self, name: str, *extra: str) -> Script:
        arguments = self.arguments(name, *extra)
        return Script(self.folder / "script.py", *arguments, folder=self.folder, output=self.folder / "printed")

    def here(self, name: str, *extra: str) -> None:
        """To the end, in this process."""
        before = sys.argv
        sys.argv = ["script.py", *self.arguments(name, *extra)]
        try:
            runpy.run_path(str(self.folder / "script.py"))
        finally:
            sys.argv = before

    def log(self, name: str) -> list[dict[str, Any]]:
        rows = read_log(self.folder / name / "log.jsonl")
        return [{k: v for k, v in row.items() if k != "images_per_s"} for row in rows]

    def assert_same(self, name: str, other: str) -> None:
        assert self.log(name) == self.log(other)
        a, b = (torch.load(self.folder / n / "checkpoints" / "last.pt", weights_only=True) for n in (name, other))
        assert a["step"] == b["step"] == self.epochs * STEPS_PER_EPOCH
        compare(a["state"], b["state"], "state")
        weights = [(self.folder / n / "encoder" / "model.safetensors").read_bytes() for n in (name, other)]
        assert weights[0] == weights[1]


def compare(a: Any, b: Any, where: str) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            compare(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            compare(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def wait_for_row(script: Script, log: Path, row: int) -> None:
    began = time.monotonic()
    while script.running and time.monotonic() - began < PATIENCE:
        if log.is_file() and len(log.read_bytes().splitlines()) >= row:
            return
        time.sleep(0.01)
    raise AssertionError(f"no row {row} in time: {script.wait()}")


def test_killed_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(tmp_path, epochs=4)
    log = tmp_path / "run" / "log.jsonl"

    script = runner.start("run", "--resume", "auto")
    wait_for_row(script, log, 3)
    script.send(signal.SIGKILL)
    status, printed, _ = script.wait()
    assert status == -signal.SIGKILL
    assert "no checkpoint yet: starting at step 0" in printed
    with open(log, "a") as file:
        file.write('{"step": 11, "epo')  # and a line cut in two

    script = runner.start("run", "--resume", "auto")
    wait_for_row(script, log, 6)
    script.send(signal.SIGTERM)
    status, printed, errors = script.wait()
    assert status == 128 + signal.SIGTERM, errors
    assert "resuming at step" in printed
    assert "continue with --resume auto" in printed + errors

    # a checkpoint that the disk spoiled: named, and the previous one takes its place
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    runner.here("run", "--resume", "auto")
    assert "last.pt: damaged" in caplog.text
    assert "previous.pt" in caplog.text
    assert "resuming at step" in capsys.readouterr().out
    runner.here("whole")
    runner.assert_same("run", "whole")


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    runner = Runner(tmp_path, epochs=100)
    log = tmp_path / "run" / "log.jsonl"
    rare = ("--probe-every", "25")
    rng = random.Random(0)
    for number in range(20):
        script = runner.start("run", "--resume", "auto", *rare)
        if number % 5 < 4:  # the others die while they start
            lines = len(log.read_bytes().splitlines()) if log.is_file() else 0
            wait_for_row(script, log, max(1, lines - 2) + rng.randrange(8))
        time.sleep(rng.uniform(0, 0.5 if number % 5 < 4 else 1))
        assert script.running, "the run is too short for this machine"
        script.send(signal.SIGTERM if number % 4 == 3 else signal.SIGKILL)
        script.wait()
    runner.here("run", "--resume", "auto", *rare)
    runner.here("whole", *rare)
    runner.assert_same("run", "whole")
