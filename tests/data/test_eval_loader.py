"""Evaluation batches: order, preprocessing of the model, unlabeled pictures and paths."""

import logging
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from aotadmm_timm.data import eval_loader, load_images
from aotadmm_timm.data.decode import UnreadableImage
from aotadmm_timm.data.readable import decode_all, only_readable


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return timm.create_model("test_vit", num_classes=0, img_size=32)


def test_order_labels_and_normalization(model: torch.nn.Module) -> None:
    images = load_images("digits", "test")
    loader = eval_loader(images, model, batch_size=7, indices=[5, 2, 9, 4, 0, 1, 3, 8])
    x, y = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert y.tolist() == images.labels[[5, 2, 9, 4, 0, 1, 3, 8]].tolist()
    assert x.shape == (8, 3, 32, 32)
    mean, std = (torch.tensor(model.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    want = torch.from_numpy(np.asarray(images[5][0]).copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(x[0], (want - mean) / std)


def test_size_follows_the_model_as_it_is_now(model: torch.nn.Module) -> None:
    images = load_images("digits", "test", num_samples=2)
    assert next(iter(eval_loader(images, model)))[0].shape[2:] == (32, 32)
    assert next(iter(eval_loader(images, model, img_size=(24, 48))))[0].shape[2:] == (24, 48)
    bigger = timm.create_model("test_vit", num_classes=0, img_size=32)
    bigger.set_input_size((48, 48))
    assert next(iter(eval_loader(images, bigger)))[0].shape[2:] == (48, 48)


def test_pictures_and_paths_have_no_label(tmp_path: Path, model: torch.nn.Module) -> None:
    Image.new("L", (40, 40), 128).save(tmp_path / "gray.png")
    x, y = next(iter(eval_loader([tmp_path / "gray.png", Image.new("RGBA", (8, 8), (0, 0, 0, 0))], model)))
    assert y.tolist() == [-1, -1]
    assert x.shape == (2, 3, 32, 32)
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.raises(UnreadableImage, match=r"bad\.png"):
        list(eval_loader([tmp_path / "bad.png"], model))


def test_one_channel() -> None:
    model = timm.create_model("test_vit", num_classes=0, img_size=32, in_chans=1)
    assert next(iter(eval_loader(load_images("digits", "test", num_samples=2), model)))[0].shape == (2, 1, 32, 32)


def test_unreadable_files_are_reported_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "train" / "a" / f"{i}.png")
    (tmp_path / "train" / "a" / "2.png").write_bytes(b"no")
    images = load_images(str(tmp_path), "train")
    with caplog.at_level(logging.WARNING):
        read: list[tuple[int, int]] = []
        assert decode_all(images, lambda i, picture: read.append((i, picture.getpixel((0, 0))[0]))) == [2]
    assert read == [(0, 0), (1, 1), (3, 3), (4, 4)]
    assert "2.png: not an image" in caplog.text
    assert "1 of 5 images are unreadable" in caplog.text
    kept = only_readable(images)
    assert [Path(kept.id_of(i)).name for i in range(len(kept))] == ["0.png", "1.png", "3.png", "4.png"]


def test_an_unreadable_image_is_named_from_a_worker_too(tmp_path: Path, model: torch.nn.Module) -> None:
    (tmp_path / "bad: name.png").write_bytes(b"no")
    with pytest.raises(UnreadableImage) as caught:
        list(eval_loader([tmp_path / "bad: name.png"], model, num_workers=1))
    assert (caught.value.path, caught.value.reason) == (
        str(tmp_path / "bad: name.png"), "not an image in a known format"
    )  # fmt: skip
