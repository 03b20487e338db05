"""A run becomes bundled weights: half precision, loaded by timm, with a card whose scores are theirs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from scripts import run_script

from aotadmm_timm.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images of two colours in data/, and in run/ a pretraining on them."""
    folder = tmp_path_factory.mktemp("bundle")
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 12)):
        for label, low in (("dark", 0), ("light", 90)):
            (folder / "data" / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(low, low + 150, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "data" / split / label / f"{i}.png")
    flags = ["--views", "natural", "--epochs", 2, "--batch-size", 16, "--projector", 16, 8, "--num-slices", 8]
    where = ["--dataset", folder / "data", "--output", folder / "run"]
    run_script("train/lejepa.py", "--model", "test_aot_admm", *flags, *where)
    return folder


def bundle(folder: Path, name: str, out: Path) -> None:
    where = ["--weights", out / "weights", "--cards", out / "cards"]
    run_script("hub/bundle.py", folder / "run", name, "--uses", "Telling dark from light.", *where)


def test_weights_and_card(trained: Path, tmp_path: Path) -> None:
    bundle(trained, "test_aot_admm.dark", tmp_path)
    stored = load_file(tmp_path / "weights" / "test_aot_admm.dark.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    exact = load_file(trained / "run" / "encoder" / "model.safetensors")
    assert all(torch.equal(stored[key], value.half()) for key, value in exact.items())

    card = (tmp_path / "cards" / "test_aot_admm.dark" / "README.md").read_text()
    assert (tmp_path / "cards" / "test_aot_admm.dark" / "curves.png").is_file()
    assert 'timm.create_model("test_aot_admm.dark", pretrained=True)' in card
    assert "Telling dark from light." in card
    assert "python train/lejepa.py --model test_aot_admm" in card
    assert str(trained) not in card

    # The card's scores are those of the stored weights: evaluate a model folder that holds them.
    encoder = timm.create_model("test_aot_admm", num_classes=0)
    encoder.load_state_dict(stored)
    timm.models.save_for_hf(encoder, str(tmp_path / "folder"), model_config=None)
    out = tmp_path / "evaluation"
    run_script("train/evaluate.py", tmp_path / "folder", "--dataset", trained / "data", "--output", out)
    (results,) = out.glob("*.json")
    scores = json.loads(results.read_text())["scores"]["pretrained"]
    row = re.search(r"\| linear probe \| (\S+) %", card)
    assert row is not None
    assert float(row[1]) == pytest.approx(100 * scores["linear"], abs=0.006)


def test_a_name_of_another_model_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"crate_tiny\.dark: expected test_aot_admm\.TAG"):
        bundle(trained, "crate_tiny.dark", tmp_path)
    assert not (tmp_path / "weights").exists()
