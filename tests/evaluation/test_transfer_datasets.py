"""Transfer data sets in torchvision's own layout on disk."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.transfer_datasets import TRANSFER, load_transfer


def write_dtd(root: Path) -> None:
    """Three textures; train, val and test lists of partition 1 as torchvision's DTD reads them."""
    data = root / "dtd" / "dtd"
    (data / "labels").mkdir(parents=True)
    for level, name in enumerate(("banded", "blotchy", "woven")):
        (data / "images" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((40, 30 + i, 3), 80 * level, np.uint8)).save(data / "images" / name / f"{i}.jpg")
    for split, indices in (("train", (0, 1)), ("val", (2,)), ("test", (3,))):
        lines = [f"{name}/{i}.jpg" for i in indices for name in ("woven", "banded", "blotchy")]
        (data / "labels" / f"{split}1.txt").write_text("\n".join(lines))


def test_train_joins_train_and_validation(tmp_path: Path) -> None:
    write_dtd(tmp_path)
    train = load_transfer("torch/dtd", "train", root=tmp_path)
    test = load_transfer("torch/dtd", "test", root=tmp_path, classes=train.classes)
    assert train.classes == ("banded", "blotchy", "woven")
    assert sorted(train.labels.tolist()) == [0] * 3 + [1] * 3 + [2] * 3
    assert len(test) == 3
    for images in (train, test):
        for index in range(len(images)):
            picture, label = images[index]
            assert np.asarray(picture).mean() == pytest.approx(80 * label, abs=2)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert len(TRANSFER) == 8
    for name in TRANSFER:
        with pytest.raises(UserError, match=name):
            load_transfer(name, "train", root=tmp_path)
