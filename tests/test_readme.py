"""README's Python runs as printed; its commands use scripts and flags that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
from PIL import Image
from readme import README, blocks, over_relaxed
from scripts import call_script
from timm.models import save_for_hf

import aotadmm_timm  # noqa: F401  (registers the models)

ROOT = README.parent


def test_python_blocks_run(tmp_path: Path) -> None:
    encoder = tmp_path / "runs" / "lejepa_aot_admm_nano_digits_s0" / "encoder"
    save_for_hf(timm.create_model("aot_admm_nano", num_classes=0), str(encoder), safe_serialization=True)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    Image.new("RGB", (30, 40), "blue").save(tmp_path / "b.jpg")
    (tmp_path / "over_relaxed.py").write_text(over_relaxed())
    code = "\n".join(b for b in blocks("python") if b != over_relaxed())
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    # the user's model trains from its own file
    command = [sys.executable, str(ROOT / "train" / "lejepa.py"), "--model", "over_relaxed_tiny", "--import"]
    command += [
        "over_relaxed.py",
        "--model-kwargs",
        "depth=2",
        "embed_dim=48",
        "num_heads=3",
        "--projector",
        "32",
        "16",
    ]
    command += ["--num-samples", "64", "--batch-size", "32", "--epochs", "1", "--no-evaluate", "--output", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "encoder" / "model.safetensors").is_file()


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
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = next(w for w in words if w.endswith(".py"))
    with pytest.raises(SystemExit) as stop:
        call_script(monkeypatch, script, "--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out.split()
    shown = {w.strip(",[]") for w in shown}
    after = words[words.index(script) + 1 :]
    assert all(w in shown for w in after if w.startswith("--"))
    for path in (w for w in after if w.endswith(".yaml")):
        assert (ROOT / path).is_file()
