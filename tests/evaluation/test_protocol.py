"""The data that an evaluation opens."""

import logging
from pathlib import Path

import pytest
from PIL import Image

from aotadmm_timm.evaluation.protocol import open_splits
from aotadmm_timm.options import EvaluateConfig


def test_unreadable_images_are_named_and_left_out_and_other_classes_are_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        folder = tmp_path / split / "a"
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")
        (folder / "1.png").write_bytes(b"no")
    with caplog.at_level(logging.WARNING):
        train, test, where = open_splits(EvaluateConfig(), str(tmp_path), {})
    assert (len(train), len(test), where) == (2, 2, "test")
    for split in ("train", "val"):
        assert f"unreadable: {tmp_path / split / 'a' / '1.png'}" in caplog.text
    (tmp_path / "val" / "stranger").mkdir()
    with pytest.raises(ValueError, match="'stranger' is not among the classes of train"):
        open_splits(EvaluateConfig(), str(tmp_path), {})
