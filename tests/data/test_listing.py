"""Listing folders: links, hidden folders, strange names, many files."""

import logging
import os
import time
from pathlib import Path

import pytest
from data.files import write

from aotadmm_timm.data import load_images
from aotadmm_timm.data.listing import few, list_images


def listed(root: Path) -> list[str]:
    return sorted(list_images(str(root)).files)


def test_links_that_circle_are_followed_once(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png", "b/deep/3.png"):
        write(tmp_path / "d" / name)
    write(tmp_path / "outside" / "4.png")
    (tmp_path / "d" / "a" / "up").symlink_to(tmp_path / "d")  # through it b would be found below a first
    (tmp_path / "d" / "self").symlink_to("self")
    (tmp_path / "d" / "z").symlink_to(tmp_path / "outside")
    (tmp_path / "d" / "c").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "back").symlink_to(tmp_path / "d")
    assert listed(tmp_path / "d") == ["a/1.png", "b/2.png", "b/deep/3.png", "c/4.png"]
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert listed(tmp_path) == ["d/a/1.png", "d/b/2.png", "d/b/deep/3.png", "loop.png", "outside/4.png"]


def test_classes_may_be_links(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "store" / "x.png")
    write(tmp_path / "d" / "train" / "b" / "y.png")
    (tmp_path / "d" / "train" / "a").symlink_to(tmp_path / "store")
    (tmp_path / "d" / "train" / "c").symlink_to(tmp_path / "d" / "train" / "b")
    with caplog.at_level(logging.WARNING):
        images = load_images(str(tmp_path / "d"), "train")
    assert (images.classes, images.labels.tolist()) == (("a", "b", "c"), [0, 1])
    assert "class 'c' has no images" in caplog.text  # they are b's


def test_what_is_passed_over_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a/1.png", "a/.cache/2.png", ".git/3.png", "b/4.png"):
        write(tmp_path / "train" / name)
    for name in ("a/notes.txt", "b/clip.mp4", "b/x", "labels.csv"):
        (tmp_path / "train" / name).write_text("no image")
    with caplog.at_level(logging.WARNING):
        images = load_images(str(tmp_path), "train")
    assert images.classes == ("a", "b")
    root = tmp_path / "train"
    assert [record.getMessage() for record in caplog.records] == [
        f"{root}: 4 files are not images by their ending: a/notes.txt, b/clip.mp4, b/x and 1 more",
        f"{root}: 2 hidden folders are not searched: .git, a/.cache",
    ]


def test_names_in_any_script_with_blanks_and_quotes(tmp_path: Path) -> None:
    names = ['a b/it\'s "1".png', "кот/たぬき 2.png", "ünï/\\n;$HOME %s {x}.png"]
    for i, name in enumerate(names):
        write(tmp_path / "train" / name, i)
    os.rename(write(tmp_path / "train" / "a b" / "0.png", 9), os.fsencode(tmp_path / "train" / "a b") + b"/caf\xe9.png")
    images = load_images(str(tmp_path), "train")
    assert len(images) == 4
    assert images.classes == tuple(sorted(name.partition("/")[0] for name in names))
    values = {images.id_of(i).rpartition("/")[2]: images[i][0].getpixel((0, 0))[0] for i in range(4)}  # type: ignore[index]
    assert values == {'it\'s "1".png': 0, "たぬき 2.png": 1, "\\n;$HOME %s {x}.png": 2, "caf\\xe9.png": 9}
    for i in range(4):
        images.id_of(i).encode()  # can be printed


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a" / "1.png")
    real = os.scandir

    def denied(path: str) -> object:  # root may read everything: no permission keeps it out
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(ValueError, match="/a: Permission denied"):
        list_images(str(tmp_path))


def test_ten_thousand_classes_and_a_hundred_thousand_files(tmp_path: Path) -> None:
    """Links to one file: they are listed as files are, and made faster. Listing is a matter of seconds."""
    source = write(tmp_path / "one.png")
    root = tmp_path / "d" / "train"
    for number in range(1000):
        folder = root / f"n{number:05}"
        folder.mkdir(parents=True)
        for i in range(10):
            os.link(source, folder / f"{i}.png")
    began = time.process_time()
    images = load_images(str(tmp_path / "d"), "train")
    assert time.process_time() - began < 1.0  # for a tenth of them
    assert (len(images), len(images.classes), images.labels[-1]) == (10_000, 1000, 999)
    with pytest.raises(ValueError, match=r"class 'n00000' is not among the classes of train \(z0, .* and 9,980 more\)"):
        load_images(str(tmp_path / "d"), "train", classes=[f"z{i}" for i in range(10_000)])


def test_few() -> None:
    assert few(["a"]) == "a"
    assert few("abcdefg", 2) == "a, b and 5 more"
