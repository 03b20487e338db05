"""Data sets without labels: they open where labels are not needed, say so, and are refused elsewhere."""

import logging
from pathlib import Path

import datasets
import pytest
from data.files import picture, shard, write

from aotadmm_timm.data import load_images
from aotadmm_timm.data.batches import make_batches
from aotadmm_timm.data.multicrop import MultiCrop


def flat(path: Path) -> str:
    for i in range(5):
        write(path / f"{i}.png", i)
    return str(path)


def flat_below_train(path: Path) -> str:
    flat(path / "train")
    return str(path)


def nested(path: Path) -> str:
    for i, name in enumerate(["1.png", "2019/2.png", "2019/may 3/3.png", "2020/4.png", "5.png"]):
        write(path / name, i)
    return str(path)


def parquet(path: Path) -> str:
    path.mkdir(parents=True)
    table = {"img": [picture(i) for i in range(5)], "caption": list("abcde")}
    features = datasets.Features({"img": datasets.Image(), "caption": datasets.Value("string")})
    data = datasets.Dataset.from_dict(table, features=features)
    data.to_parquet(path / "train-00000-of-00001.parquet")
    return f"hfds/{path}"


def shards(path: Path) -> str:
    shard(path / "00000.tar", {f"{i}": (i, None) for i in range(3)})
    shard(path / "00001.tar", {f"{i}": (i, None) for i in range(3, 5)})
    return f"wds/{path}"


@pytest.mark.parametrize("make", [flat, flat_below_train, nested, parquet, shards])
def test_images_without_labels(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    name = make(tmp_path / "d")
    images = load_images(name, "train", root=tmp_path / "cache", labels=False)
    assert not images.has_labels
    assert images.classes == ()
    assert images.labels.tolist() == [-1] * 5
    assert sorted(images[i][0].getpixel((0, 0))[0] for i in range(5)) == [0, 1, 2, 3, 4]
    (batch,) = make_batches(images, MultiCrop(num_local=0, global_size=8), batch_size=4)(0, 1)
    assert batch.labels.tolist() == [-1] * 4
    if make is not nested:  # whose sub-folders can be classes
        with pytest.raises(ValueError, match=r"no label|none of .* fits"):
            load_images(name, "train", root=tmp_path / "cache")


def test_images_beside_class_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a/x.png", "b/y.png", "thumbnail.png"):
        write(tmp_path / "train" / name)
    with caplog.at_level(logging.WARNING):
        labeled = load_images(str(tmp_path), "train")
    assert (labeled.labels.tolist(), labeled.has_labels) == ([0, 1], True)
    assert "1 images lie in no class folder, left out: thumbnail.png" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        everything = load_images(str(tmp_path), "train", labels=False)
    assert (len(everything), everything.has_labels) == (3, False)
    assert "1 images lie in no sub-folder (thumbnail.png): no image has a label" in caplog.text


def test_labels_stay_where_they_are_not_needed(tmp_path: Path) -> None:
    for name in ("train/a/x.png", "train/b/y.png"):
        write(tmp_path / name)
    images = load_images(str(tmp_path), "train", labels=False)
    assert (images.labels.tolist(), images.classes, images.has_labels) == ([0, 1], ("a", "b"), True)
    assert load_images("digits", "train", labels=False).has_labels
