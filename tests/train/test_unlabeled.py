"""Pretraining on images that nothing can be scored on: no labels, or one class."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripts import ROOT, call_script

MODEL = ["--model", "test_aot_admm", "--projector", "32", "16", "--num-slices", "16", "--num-local", "1"]
SMALL = [*MODEL, "--epochs", "1", "--batch-size", "8", "--amp", "off", "--device", "cpu"]


def draw(folder: Path, count: int) -> str:
    """Noise of as many sizes as images, so that worker processes cut the views."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        Image.fromarray(rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    return str(folder)


def test_a_flat_folder_with_workers_that_are_spawned(tmp_path: Path) -> None:
    """As on macOS: the script is imported anew in each worker. The folder's name holds blanks, quotes and kana."""
    images = draw(tmp_path / 'it\'s "犬"', 27)
    (Path(images) / "03.png").write_bytes(b"no")
    (tmp_path / "spawn.py").write_text(
        "import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)\n"
    )
    command = [sys.executable, str(ROOT / "train" / "lejepa.py"), *SMALL, "--dataset", images, "--num-workers", "1"]
    command += ["--import", str(tmp_path / "spawn.py"), "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "27 images (24 in each epoch, 3 left out)" in done.stdout
    assert f"{images}: not all images have labels: probes and final scores are left out" in done.stdout
    assert done.stderr.count("03.png: not an image in a known format") == 1
    assert "next:" not in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert not {"online_probe", "offline_knn20"} & {key for row in rows for key in row}
    assert "pretrained" not in json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (tmp_path / "run" / "encoder" / "model.safetensors").is_file()


def test_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    draw(tmp_path / "images" / "only", 8)
    arguments = ["--dataset", str(tmp_path / "images"), "--num-workers", "0", "--output", str(tmp_path / "run")]
    call_script(monkeypatch, "train/lejepa.py", *SMALL, *arguments)
    assert "all images are of one class: probes and final scores are left out" in capsys.readouterr().out
