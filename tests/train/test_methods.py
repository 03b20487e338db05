"""Every method by its name: it runs to the end, resumes exactly, and says what it cannot use before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from scripts import call_script

from aotadmm_timm.engine.method_names import METHODS
from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.folder import read_log

FEW = ["--model", "test_aot_admm", "--num-samples", "64", "--batch-size", "32", "--epochs", "2", "--num-local", "1"]
FEW += ["--projector", "16", "8", "--log-every", "1", "--no-evaluate", "--amp", "off", "--device", "cpu"]
OWN = {
    "byol": ["--predictor", "8"],
    "dino": ["--prototypes", "12"],
    "lambda_jepa": ["--target", "ema", "--projector-buffer", "1", "--backbone-buffer", "1"],
}


def log(name: str) -> list[dict[str, Any]]:
    rows = read_log(Path(name) / "log.jsonl")
    return [{key: value for key, value in row.items() if key != "images_per_s"} for row in rows]


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_the_run_that_was_not_stopped(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["--method", method, *FEW, *OWN.get(method, [])]
    call += [] if method == "lambda_jepa" else ["--backbone-sacreg", "0.1", "--backbone-buffer", "1"]
    call_script(monkeypatch, "train/pretrain.py", *call, "--output", "whole")
    call_script(monkeypatch, "train/pretrain.py", *call, "--output", "halves", "--stop-after", "1")
    call_script(monkeypatch, "train/pretrain.py", *call, "--output", "halves", "--resume", "auto")
    assert log("whole") == log("halves")
    states = [torch.load(f"{name}/checkpoints/last.pt", weights_only=True)["state"] for name in ("whole", "halves")]
    assert states[0]["method"].keys() == states[1]["method"].keys()
    assert all(torch.equal(value, states[1]["method"][key]) for key, value in states[0]["method"].items())
    groups = [state["optimizer"]["param_groups"] for state in states]
    assert groups[0] == groups[1]
    weights = [load_file(f"{name}/encoder/model.safetensors") for name in ("whole", "halves")]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())

    config = yaml.safe_load(Path("whole/config.yaml").read_text())
    assert config["method"] == method
    assert config["convention"]["backbone_sacreg"] > 0
    trained = states[0]["method"]["backbone.blocks.0.attn.qkv.weight"]
    taught = method in ("dino", "simdino")  # these export the teacher
    assert torch.equal(weights[0]["blocks.0.attn.qkv.weight"], trained) != taught


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "simclr", "--num-global", "1"], "--num-global 1: SimCLR needs 2 global views"),
        (["--method", "dino", "--ema", "0.9"], "--ema 0.9: DINO exports an average of its own, its teacher"),
        (["--method", "byol", "--batch-size", "1"], "--batch-size 1: BatchNorm"),
        (["--method", "bjol"], r"--method bjol: is lejepa, .*nearest known: byol"),
        (["--method", "simclr", "--prototypes", "3"], "unknown argument --prototypes"),
        (["--method", "lejepa", "--regularizer", "jarque-bera"], "--normalize"),
    ],
)
def test_what_a_method_cannot_use_is_said_before_training(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        call_script(monkeypatch, "train/pretrain.py", *FEW, *arguments, "--output", "run")
    assert not Path("run").exists()
