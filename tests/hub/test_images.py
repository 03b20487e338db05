"""Listing images: every file that is one, once, in a fixed order."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aotadmm_timm.errors import UserError
from aotadmm_timm.hub.images import open_images


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(path)


def test_a_folder_is_listed_in_sorted_order_with_its_sub_folders_as_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["b/2.PNG", "b/10.webp", "a x/ü 東京.jpg", "c/deep/1.tif", "c/1.gif", "c/0.bmp"]
    for name in names:
        save(tmp_path / name)
    (tmp_path / "b" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    source = open_images(str(tmp_path))
    assert list(source.ids) == sorted(names)
    assert source.classes == ["a x", "b", "c", "c/deep"]
    assert [source.classes[label] for label in source.labels] == [os.path.dirname(name) for name in sorted(names)]
    assert source.read(0).size == (8, 8)
    assert "1 files are not images" in capsys.readouterr().err


def test_a_flat_folder_has_no_labels_and_links_are_followed_once(tmp_path: Path) -> None:
    save(tmp_path / "real" / "1.png")
    save(tmp_path / "root.png")
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "link.png").symlink_to(tmp_path / "root.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe.png")  # reading it would wait for ever
    source = open_images(str(tmp_path))
    assert list(source.ids) == ["dangling.png", "link.png", "real/1.png", "root.png"]
    assert source.labels is None


def test_a_name_that_is_not_utf8_stays_apart_and_readable(tmp_path: Path) -> None:
    save(tmp_path / "x.png")
    os.rename(tmp_path / "x.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    source = open_images(str(tmp_path))
    assert list(source.ids) == ["caf\\xe9.png"]
    assert source.read(0).size == (8, 8)


def test_a_list_of_files_is_sorted_and_relative_to_itself(tmp_path: Path) -> None:
    save(tmp_path / "b.png")
    save(tmp_path / "sub" / "a ü.png")
    (tmp_path / "list.txt").write_text(f"sub/a ü.png\n{tmp_path / 'b.png'}\nb.png\r\nb.png\ngone.png\n\n")
    source = open_images(str(tmp_path / "list.txt"))
    assert list(source.ids) == sorted([str(tmp_path / "b.png"), "b.png", "gone.png", "sub/a ü.png"])
    assert source.read(list(source.ids).index("sub/a ü.png")).size == (8, 8)
    with pytest.raises(ValueError, match=r"^gone\.png: No such file"):
        source.read(list(source.ids).index("gone.png"))


def test_the_digest_changes_with_names_and_contents(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    first = open_images(str(tmp_path)).digest()
    assert open_images(str(tmp_path)).digest() == first
    os.utime(tmp_path / "1.png", ns=(1, 1))
    second = open_images(str(tmp_path)).digest()
    save(tmp_path / "2.png")
    assert len({first, second, open_images(str(tmp_path)).digest()}) == 3


def test_data_sets_are_known_by_timms_names(tmp_path: Path) -> None:
    source = open_images("digits", split="test")
    assert len(source) == 359
    assert len(set(source.ids)) == 359
    assert source.read(0).size == (32, 32)
    assert np.unique(source.labels).size == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "no image files in it"),
        (lambda path: path.write_bytes(b""), "expected a folder, a .txt file"),
        (lambda path: None, "no such folder, file or data set"),
    ],
)
def test_nothing_to_extract_is_one_clear_line(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "images")
    with pytest.raises(UserError, match=f"images: {message}"):
        open_images(str(tmp_path / "images"))
