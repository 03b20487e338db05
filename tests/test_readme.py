"""README's Python runs as printed; its commands use scripts and flags that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import yaml
from PIL import Image
from readme import README, blocks, files
from safetensors.torch import load_file
from scripts import call_script
from timm.models import save_for_hf

import aotadmm_timm  # noqa: F401  (registers the models)

ROOT = README.parent


def test_python_blocks_run(tmp_path: Path) -> None:
    encoder = tmp_path / "runs" / "lejepa_aot_admm_nano_digits_s0" / "encoder"
    save_for_hf(timm.create_model("aot_admm_nano", num_classes=0), str(encoder), safe_serialization=True)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    Image.new("RGB", (30, 40), "blue").save(tmp_path / "b.jpg")
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    code = "\n".join(b for b in blocks("python") if b not in files().values())
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


FEW = ["--num-samples", "64", "--batch-size", "32", "--epochs", "2", "--no-evaluate", "--output", "run"]


def test_the_users_own_layer_trains_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("over_relaxed.py").write_text(files()["over_relaxed.py"])
    small = [
        "--model",
        "over_relaxed_tiny",
        "--model-kwargs",
        "depth=2",
        "embed_dim=48",
        "num_heads=3",
        "--projector",
        "32",
        "16",
    ]
    call_script(monkeypatch, "train/lejepa.py", *small, "--import", "over_relaxed.py", *FEW)
    assert Path("run/encoder/model.safetensors").is_file()


def test_the_users_own_method_trains_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are options; the teacher is what is exported, moved by its momentum, and a resume continues it."""
    monkeypatch.chdir(tmp_path)
    Path("mean_teacher.py").write_text(files()["mean_teacher.py"])
    call = ["--method", "mean_teacher.py:MeanTeacher", "--momentum", "0.9", "--projector", "16", "8", *FEW]
    call += ["--model", "test_aot_admm", "--amp", "off"]
    call_script(monkeypatch, "train/pretrain.py", *call)
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert (config["method"], config["momentum"], config["lamb"]) == ("mean_teacher.py:MeanTeacher", 0.9, 0.05)
    assert config["convention"] == {"method": "mean teacher", "momentum": 0.9, "lamb": 0.05}
    exported = load_file("run/encoder/model.safetensors")
    state = torch.load("run/checkpoints/last.pt", weights_only=True)["state"]["method"]
    key = "blocks.0.attn.qkv.weight"
    assert torch.equal(exported[key], state[f"teacher.average.module.0.{key}"])
    assert not torch.equal(exported[key], state[f"backbone.{key}"])

    halves = [*call[: call.index("run")], "halves", *call[call.index("run") + 1 :]]
    call_script(monkeypatch, "train/pretrain.py", *halves, "--stop-after", "1")
    call_script(monkeypatch, "train/pretrain.py", *halves, "--resume", "auto")
    assert Path("halves/encoder/model.safetensors").read_bytes() == Path("run/encoder/model.safetensors").read_bytes()


def test_links_and_leftovers() -> None:
    text = README.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link
    assert not re.findall(r"^[A-Z_]{4,}$", text, re.MULTILINE)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("bash")).splitlines()
    words = [line.partition("#")[0].split() for line in lines]
    return [[w for w in line if w != "..."] for line in words if any(w.endswith(".py") for w in line)]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words)[:60])
def test_commands_name_scripts_and_flags_that_exist(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files().items():
        Path(name).write_text(text)
    script = next(w for w in words if w.endswith(".py"))
    method = words[words.index("--method") :][:2] if "--method" in words else []  # its arguments are options
    with pytest.raises(SystemExit) as stop:
        call_script(monkeypatch, script, *method, "--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out.split()
    shown = {w.strip(",[]") for w in shown}
    after = words[words.index(script) + 1 :]
    assert all(w in shown for w in after if w.startswith("--"))
    for path in (w for w in after if w.endswith(".yaml")):
        assert (ROOT / path).is_file()
