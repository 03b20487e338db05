"""torchrun with two processes is one process with the double batch; SIGTERM stops both at one step, saved once."""

import json
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aotadmm_timm.evaluation.protocol import evaluate
from aotadmm_timm.options import EvaluateConfig
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.folder import read_log

SCRIPT = Path(__file__).parents[2] / "train" / "lejepa.py"
MODEL = "--model test_aot_admm --projector 32 16 --num-slices 16 --amp off --device cpu --clip-grad 5 --ema 0.9"
DATA = "--num-samples 128 --num-local 2 --epochs 100 --accumulate 2 --log-every 1 --no-evaluate"
ARGUMENTS = f"{MODEL} {DATA} --probe-every 100".split()


def losses(run: Path) -> list[dict[str, Any]]:
    return [row for row in read_log(run / "log.jsonl") if "loss" in row]


def test_two_processes_equal_one_and_stop_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(SCRIPT)]
    command += [*ARGUMENTS, "--batch-size", "8", "--output", str(two)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    monkeypatch.setattr(sys, "argv", ["lejepa.py", *ARGUMENTS, "--batch-size", "16", "--output", str(one)])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--stop-after", "5"])
    runpy.run_path(str(SCRIPT), run_name="__main__")

    deadline = time.monotonic() + 600
    while len(losses(two)) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=600)
    assert len(losses(two)) >= 20, output
    assert "global batch 32" in output
    for joined, single in zip(losses(two), losses(one), strict=False):
        for key in ("loss", "inv", "sigreg", "online_probe"):
            assert joined[key] == pytest.approx(single[key], rel=1e-4), (joined, single)

    assert output.count("stopped at step") == 1
    assert "Traceback" not in output.partition("stopped at step")[0]
    saved = checkpoints.find("auto", two)
    assert saved is not None
    assert f"stopped at step {saved['step']};" in output
    assert saved["step"] == losses(two)[-1]["step"]


def test_two_processes_score_the_network_that_they_save(tmp_path: Path) -> None:
    """Statistics of BatchNorm are each process's own where they cannot be shared; there is one network all the same."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(SCRIPT)]
    network = "--model test_resnet --small-image-stem --projector 32 16 --num-slices 16 --lr 5e-3"
    data = "--num-samples 192 --epochs 1 --batch-size 24 --amp off --device cpu"
    command += f"{network} {data}".split()
    run = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "each process normalises by its own batch in BatchNorm" in run.stderr
    settings = EvaluateConfig(
        run_or_model=str(tmp_path), device="cpu", views=0, layer_images=0, baseline=False, num_samples=192
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["command"].startswith("torchrun --nproc_per_node=2 train/lejepa.py --model test_resnet ")
    scores = metrics["pretrained"]
    assert evaluate(settings)["scores"]["pretrained"] == pytest.approx(scores, rel=1e-6)
