"""Data sets by name: real files of each kind, one class order, refusals that name what is wrong."""

import logging
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torchvision
from data.files import picture, shard, write

from aotadmm_timm.data import NoSuchSplit, held_out_split, if_there, load_images
from aotadmm_timm.data.decode import UnreadableImage
from aotadmm_timm.data.library import LibraryImages
from aotadmm_timm.errors import UserError


def test_digits() -> None:
    train, test = load_images("digits", "train"), load_images("digits", "test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.classes == tuple("0123456789") == test.classes
    assert train.image_size == (32, 32)
    assert (np.bincount(test.labels) > 30).all()
    image, label = train[0]
    assert (image.mode, image.size, label) == ("RGB", (32, 32), train.labels[0])
    rows = {np.asarray(x).tobytes() for x, _ in (train[i] for i in range(len(train)))}
    assert sum(np.asarray(test[i][0]).tobytes() in rows for i in range(len(test))) == 0
    with pytest.raises(ValueError, match="digits: no split 'extra'; it has train, test"):
        load_images("digits", "extra")


def test_a_seeded_sample_and_a_subset() -> None:
    whole = load_images("digits", "train")
    part, more, other = (load_images("digits", "train", num_samples=n, seed=s) for n, s in ((20, 3), (40, 3), (20, 4)))
    rows = part.rows.tolist()
    assert rows == sorted(set(rows))
    assert set(rows) < set(more.rows.tolist())
    assert rows != other.rows.tolist()
    assert part[7] == whole[rows[7]]
    chosen = whole.subset([7, 3]).subset([1])
    assert chosen[0] == whole[3]
    assert chosen.id_of(0) == "digits train[3]"
    assert len(load_images("digits", "train", num_samples=10**6)) == 1438
    with pytest.raises(ValueError, match="num_samples must be positive, got 0"):
        load_images("digits", "train", num_samples=0)


def test_folder_and_its_synonyms(tmp_path: Path) -> None:
    for i, name in enumerate(["b/x.png", "b/deep/er/y.webp", "a/z.tif", "a/ümlaut und かな.bmp"]):
        write(tmp_path / "train" / name, i)
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    write(tmp_path / "val" / "b" / "v.JPG", 100)
    train, test = load_images(str(tmp_path), "train"), load_images(str(tmp_path), "test")
    assert train.classes == ("a", "b")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert [Path(train.id_of(i)).name for i in range(4)] == ["z.tif", "ümlaut und かな.bmp", "y.webp", "x.png"]
    assert [train[i][0].getpixel((0, 0))[0] for i in (0, 1, 3)] == [2, 3, 0]
    np.testing.assert_array_equal(load_images(str(tmp_path), "test", classes=train.classes).labels, [1])
    assert len(test) == 1


def test_an_empty_class_keeps_its_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train/a/0.png", "train/b/0.png", "train/c/0.png", "val/a/0.png", "val/c/0.png"):
        write(tmp_path / name)
    (tmp_path / "val" / "b").mkdir()
    train = load_images(str(tmp_path), "train")
    with caplog.at_level(logging.WARNING):
        val = load_images(str(tmp_path), "test", classes=train.classes)
    assert val.labels.tolist() == [0, 2]
    assert val.classes == ("a", "b", "c")
    assert "class 'b' has no images" in caplog.text
    (tmp_path / "val" / "b").rmdir()
    assert load_images(str(tmp_path), "test", classes=train.classes).labels.tolist() == [0, 2]


def test_an_unknown_class_is_an_error(tmp_path: Path) -> None:
    for name in ("train/a/0.png", "val/a/0.png", "val/z/0.png"):
        write(tmp_path / name)
    with pytest.raises(ValueError, match=r"class 'z' is not among the classes of train \(a\)"):
        load_images(str(tmp_path), "test", classes=load_images(str(tmp_path), "train").classes)


def test_an_unreadable_file_is_named_never_its_neighbor(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a" / "0.png", 1)
    bad = write(tmp_path / "train" / "a" / "1.png", 2)
    bad.write_bytes(bad.read_bytes()[:50])
    images = load_images(str(tmp_path), "train")
    assert len(images) == 2
    with pytest.raises(UnreadableImage, match=r"1\.png"):
        images[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ([], "no class folders"),
        (["train/a/x.txt"], "no image files"),
        (["train/a/x.png"], "no split 'test'; it has train"),
        (["a/x.png"], "expected sub-folders train/ and val/"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, make: list[str], message: str) -> None:
    for name in make:
        write(tmp_path / name) if name.endswith(".png") else (tmp_path / name).parent.mkdir(parents=True)
    split = "test" if any(n.endswith(".png") for n in make) else "train"
    with pytest.raises(ValueError, match=message):
        load_images(str(tmp_path), split)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("cifar10", ValueError, "unknown data set 'cifar10': expected digits, torch/NAME"),
        ("./nowhere", UserError, "data set folder './nowhere' does not exist"),
        ("torch/cifar11", ValueError, "torch/cifar11"),
        ("hfds/", ValueError, "hfds/: which data set"),
        ("hfds/./nowhere", UserError, "no folder './nowhere'"),
        ("wds/nowhere", UserError, "no folder 'nowhere'"),
        ("tfds/cifar10", ValueError, "streamed data sets have no random access"),
    ],
)
def test_unknown_names(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_images(name, "train")


def test_missing_torchvision_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not found under .*--dataset-download fetches it"):
        load_images("torch/cifar10", "train", root=tmp_path)


def test_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real CIFAR-10 format, with three images; only the checksum of the true files is not asked for."""
    import pickle

    base = tmp_path / "cifar-10-batches-py"
    base.mkdir()
    values = np.arange(3 * 3072, dtype=np.int64).reshape(3, 3072) % 251
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        content = {"data": values.astype(np.uint8), "labels": [2, 0, 1]}
        (base / name).write_bytes(pickle.dumps(content))
    names = ["plane", "car", "bird"]
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *a, **k: True)
    train = load_images("torch/cifar10", "train", root=tmp_path)
    assert (len(train), train.classes, train.labels[:4].tolist()) == (15, ("plane", "car", "bird"), [2, 0, 1, 2])
    assert np.asarray(train[1][0]).transpose(2, 0, 1).ravel().tolist() == values[1].tolist()
    assert len(load_images("torch/cifar10", "test", root=tmp_path, classes=train.classes)) == 3


def parquet(folder: Path, labels: dict[str, list[str]], rows: int = 4, image: str = "img") -> str:
    """A folder of parquet files as the Hub holds them: one image column, class columns with these names."""
    for split, count in (("train", rows), ("test", 2)):
        table: dict[str, Any] = {image: [picture(10 * i) for i in range(count)]}
        features: dict[str, Any] = {image: datasets.Image()}
        for key, names in labels.items():
            table[key] = [i % len(names) for i in range(count)]
            features[key] = datasets.ClassLabel(names=names)
        data = datasets.Dataset.from_dict(table, features=datasets.Features(features))
        data.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return f"hfds/{folder}"


def test_parquet_folder_columns_are_inferred(tmp_path: Path) -> None:
    name = parquet(tmp_path / "d", {"label": ["cat", "dog"]}) if (tmp_path / "d").mkdir() is None else ""
    train = load_images(name, "train", root=tmp_path / "cache")
    assert (len(train), train.classes, train.labels.tolist()) == (4, ("cat", "dog"), [0, 1, 0, 1])
    assert train[2][0].getpixel((0, 0)) == (20, 235, 10)
    assert train.id_of(2).endswith("train[2]")
    assert len(load_images(name, "test", root=tmp_path / "cache", classes=train.classes)) == 2
    with pytest.raises(ValueError, match=r"no column 'fine' \(--target-key\); it has img, label"):
        load_images(name, "train", root=tmp_path / "cache", target_key="fine")
    with pytest.raises(ValueError, match="classes of split 'test' are not those of train: unknown cat, dog"):
        load_images(name, "test", root=tmp_path / "cache", classes=["x", "y"])


def test_an_unlabeled_test_is_passed_over_for_validation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ImageNet's shape: test carries -1, validation the labels."""
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})

    def put(split: str, labels: list[int | None]) -> None:
        table = {"img": [picture(10 * i) for i in range(len(labels))], "label": labels}
        data = datasets.Dataset.from_dict(table, features=features)
        data.to_parquet(tmp_path / "d" / f"{split}-00000-of-00001.parquet")

    (tmp_path / "d").mkdir()
    name, options = f"hfds/{tmp_path / 'd'}", {"root": tmp_path / "cache"}
    for split, labels in {"train": [0, 1, 0], "validation": [1, 0], "test": [-1, -1, -1]}.items():
        put(split, list(labels))
    test = load_images(name, "test", **options)  # type: ignore[arg-type]
    assert (test.split, test.labels.tolist(), test.id_of(0)) == ("validation", [1, 0], f"{name} validation[0]")
    put("validation", [None, None])
    with pytest.raises(NoSuchSplit, match="no split 'test'; it has train"):
        load_images(name, "test", **options)  # type: ignore[arg-type]
    put("validation", [1, None])
    with caplog.at_level(logging.WARNING):
        rest = load_images(name, "test", **options)  # type: ignore[arg-type]
    assert (rest.labels.tolist(), rest.id_of(0)) == ([1], f"{name} validation[0]")
    assert "1 images of split 'validation' have no label, left out: row 1" in caplog.text
    put("train", [-1, -1, -1])
    with pytest.raises(ValueError, match="images of split 'train' have no labels, which are needed here") as caught:
        load_images(name, "train", **options)  # type: ignore[arg-type]
    assert not isinstance(caught.value, NoSuchSplit)


def test_only_a_missing_split_counts_as_missing(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a" / "x.png")
    assert if_there(lambda: load_images(str(tmp_path), "test")) is None
    write(tmp_path / "val" / "stranger" / "x.png")
    with pytest.raises(ValueError, match="class 'stranger' is not among the classes of train"):
        if_there(lambda: load_images(str(tmp_path), "test", classes=["a"]))


def test_a_sample_of_a_sorted_set_is_not_its_first_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(40):
        write(tmp_path / "train" / "abcd"[i // 10] / f"{i}.png")
    with caplog.at_level(logging.WARNING):
        assert np.bincount(load_images(str(tmp_path), "train", num_samples=20).labels, minlength=4).min() > 0
        assert not caplog.text
        load_images(str(tmp_path), "train", num_samples=3)
    assert "the 3 images drawn have" in caplog.text
    assert "of its 4 classes" in caplog.text


def test_two_label_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "d").mkdir()
    name = parquet(tmp_path / "d", {"coarse_label": ["animal"], "fine_label": ["cat", "dog"]})
    with caplog.at_level(logging.WARNING):
        assert load_images(name, "train", root=tmp_path / "c").classes == ("cat", "dog")
    assert "'fine_label'; --target-key chooses another (coarse_label)" in caplog.text
    assert load_images(name, "train", root=tmp_path / "c", target_key="coarse_label").classes == ("animal",)
    (tmp_path / "e").mkdir()
    name = parquet(tmp_path / "e", {"one": ["a"], "two": ["b"]})
    with pytest.raises(ValueError, match=r"several columns fit \(one, two\); name one with --target-key"):
        load_images(name, "train", root=tmp_path / "c")


def test_webdataset_shards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shard(tmp_path / "data-train-000.tar", {"s0": (10, 1), "s1": (20, 0)})
    shard(tmp_path / "data-train-001.tar", {"s0": (30, 2)})
    shard(tmp_path / "data-val-000.tar", {"s0": (40, 2)})
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    train = load_images(f"wds/{tmp_path}", "train")
    assert train.labels.tolist() == [1, 0, 2]
    assert train.classes == ("a", "b", "c")
    assert [train[i][0].getpixel((0, 0))[0] for i in range(3)] == [10, 20, 30]
    assert load_images(f"wds/{tmp_path}", "test", classes=train.classes).labels.tolist() == [2]
    shard(tmp_path / "data-train-002.tar", {"s9": (30, None)})
    with caplog.at_level(logging.WARNING):
        assert len(load_images(f"wds/{tmp_path}", "train")) == 3
    assert "002.tar: left out 1 images without a label: s9" in caplog.text


def test_shards_belong_to_the_split_that_their_name_says_in_a_whole_word(tmp_path: Path) -> None:
    shard(tmp_path / "latest-train-000.tar", {"./v1.0/a": (10, 0), "./v1.0/b": (20, 1)})
    shard(tmp_path / "retrieval_val0.tar", {"./a": (30, 1)})
    assert load_images(f"wds/{tmp_path}", "train").labels.tolist() == [0, 1]
    assert load_images(f"wds/{tmp_path}", "test").labels.tolist() == [1]
    with pytest.raises(NoSuchSplit, match="no split 'holdout'; it has train, val"):
        load_images(f"wds/{tmp_path}", "holdout")


def test_images_without_labels_where_none_are_needed(tmp_path: Path) -> None:
    shard(tmp_path / "w" / "test.tar", {"a": (10, None), "b": (20, 1)})
    assert load_images(f"wds/{tmp_path / 'w'}", "test", labels=False).labels.tolist() == [-1, 1]
    features = datasets.Features({"img": datasets.Image()})
    data = datasets.Dataset.from_dict({"img": [picture(10), picture(20)]}, features=features)
    for split in ("train", "test"):
        (tmp_path / "d").mkdir(exist_ok=True)
        data.to_parquet(tmp_path / "d" / f"{split}-00000-of-00001.parquet")
    name, cache = f"hfds/{tmp_path / 'd'}", tmp_path / "cache"
    images = load_images(name, "test", root=cache, labels=False)
    assert (images.split, images.labels.tolist()) == ("test", [-1, -1])
    assert images[1][0].getpixel((0, 0))[0] == 20  # type: ignore[index]
    with pytest.raises(ValueError, match="none of img fits; name one with --target-key"):
        load_images(name, "test", root=cache)


def test_a_damaged_file_of_a_library_is_named(tmp_path: Path) -> None:
    bad = write(tmp_path / "a" / "x.png")
    bad.write_bytes(bad.read_bytes()[:50])
    data = torchvision.datasets.ImageFolder(str(tmp_path))
    images = LibraryImages("torch/some", "test", [0], ["a"], data)
    with pytest.raises(UnreadableImage, match=r"torch/some test\[0\]: .+"):
        images[0]


def test_held_out_split() -> None:
    labels = np.array([0] * 30 + [1] * 7 + [2])
    kept, held = held_out_split(labels)
    assert sorted([*kept, *held]) == list(range(38))
    assert np.bincount(labels[held], minlength=3).tolist() == [3, 1, 0]
    np.testing.assert_array_equal(held, held_out_split(labels)[1])
    assert (held_out_split(labels, seed=1)[1] != held).any()


@pytest.mark.parametrize(
    ("labels", "held"),
    [
        (np.empty(0, np.int64), 0),
        (np.array([5]), 0),
        (np.arange(100), 0),
        (np.full(40, -1), 4),
        (np.repeat(np.arange(10_000), 2), 10_000),  # a class gives one of its two
        (np.array([0, 0]), 1),
    ],
)
def test_held_out_splits_at_the_edges(labels: np.ndarray, held: int) -> None:
    kept, out = held_out_split(labels)
    assert len(out) == held
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, out])), np.arange(len(labels)))
    assert len(np.unique(labels[kept])) == len(np.unique(labels))
