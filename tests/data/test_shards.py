"""Shards as people really have them: what is not read is named and counted, once for each shard."""

import io
import logging
import os
import tarfile
from pathlib import Path

import pytest
from data.files import picture, shard

from aotadmm_timm.data import NoSuchSplit, load_images
from aotadmm_timm.data.samples import Images


def pack(path: Path, members: list[tuple[str, bytes | int]]) -> str:
    """A tar file of these members, an integer standing for an image of this value; returns its data set's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            data = encoded(content) if isinstance(content, int) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return f"wds/{path.parent}"


def encoded(value: int) -> bytes:
    buffer = io.BytesIO()
    picture(value).save(buffer, "PNG")
    return buffer.getvalue()


def keys(images: Images) -> list[str]:
    return [images.id_of(i).partition(".tar/")[2] for i in range(len(images))]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_dot_in_a_name_loses_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members: list[tuple[str, bytes | int]] = [("cat.1.jpg", 10), ("cat.1.cls", b"0"), ("cat.2.jpg", 20)]
    members += [("cat.2.cls", b"1\n"), ("dog.jpg", 30), ("dog.cls", b"1"), ("v1.0/dog.JPG", 40), ("v1.0/dog.cls", b"0")]
    images = load_images(pack(tmp_path / "dotted-0000.tar", members), "train")
    assert keys(images) == ["cat.1", "cat.2", "dog", "v1.0/dog"]
    assert images.labels.tolist() == [0, 1, 1, 0]
    assert [images[i][0].getpixel((0, 0))[0] for i in range(4)] == [10, 20, 30, 40]  # type: ignore[index]
    assert said(caplog) == []


def test_a_dot_in_the_name_of_images_without_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members: list[tuple[str, bytes | int]] = [(f"IMG.2024.0{i}.png", i) for i in (1, 2)]
    members += [("scan.left.png", 3), ("scan.png", 4)]
    images = load_images(pack(tmp_path / "0000.tar", members), "train", labels=False)
    assert keys(images) == ["IMG.2024.01", "IMG.2024.02", "scan"]
    assert not images.has_labels
    assert said(caplog) == [f"{tmp_path}/0000.tar: left out 1 images under a second extension: scan.left.png"]


def test_whatever_is_of_no_use_is_named_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mask: list[tuple[str, bytes | int]] = [
        ("c.seg.png", 1),
        ("c.cls", b"0"),
        ("d.jpg", 2),
        ("d.seg.png", 3),
        ("d.cls", b"1"),
    ]
    pack(tmp_path / "train-0.tar", mask)
    pack(tmp_path / "train-1.tar", [("a.jpg", 4), ("a.cls", b"1"), ("a.json", b"{}"), ("b.cls", b"0")])
    pack(tmp_path / "train-2.tar", [("e.png", 5), ("f.mp4", b"x"), ("f.json", b"{}"), ("._g.png", 6), ("README", b"x")])
    pack(tmp_path / "train-3.tar", [("h.png", 7), ("h.cls", b"0")])
    images = load_images(f"wds/{tmp_path}", "train")
    assert keys(images) == ["d", "a", "h"]
    assert images.labels.tolist() == [1, 1, 0]
    first, second, third = said(caplog)
    assert first == (
        f"{tmp_path}/train-0.tar: left out 1 labels without an image: c.cls; "
        "2 images under a second extension: c.seg.png, d.seg.png"
    )
    assert second == f"{tmp_path}/train-1.tar: left out 1 labels without an image: b.cls"
    assert third == (
        f"{tmp_path}/train-2.tar: left out 1 samples without an image: f.json; "
        "2 members that are links, hidden or have no extension: ._g.png, README; 1 images without a label: e"
    )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.jpg", 1), ("a.cls", b"0"), ("a.jpg", 2), ("a.cls", b"1")], "key 'a' has two images (a.jpg, a.jpg)"),
        ([("s/b.png", 1), ("s/b.jpg", 2), ("s/b.cls", b"0")], "key 's/b' has two images (s/b.png, s/b.jpg)"),
        ([("a.jpg", 1), ("a.cls", b"0"), ("a.cls", b"1")], "key 'a' has two labels"),
        ([("a.jpg", 1), ("a.cls", b"cat")], "a.cls holds b'cat', expected the number of a class"),
    ],
)
def test_a_key_that_says_two_things(members: list[tuple[str, bytes | int]], message: str, tmp_path: Path) -> None:
    name = pack(tmp_path / "train-0.tar", members)
    with pytest.raises(ValueError) as caught:
        load_images(name, "train")
    assert str(caught.value).startswith(f"{tmp_path}/train-0.tar: ")
    assert message in str(caught.value)


def test_one_key_in_two_shards_is_two_samples(tmp_path: Path) -> None:
    for i in (0, 1):
        shard(tmp_path / f"train-{i}.tar", {"a": (10 * i, i)})
    assert load_images(f"wds/{tmp_path}", "train").labels.tolist() == [0, 1]


def test_links_have_no_bytes_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack(tmp_path / "0.tar", [("a.png", 1)])
    with tarfile.open(tmp_path / "0.tar", "a") as archive:
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = tarfile.LNKTYPE, "a.png"
        archive.addfile(link)
    assert keys(load_images(f"wds/{tmp_path}", "train", labels=False)) == ["a"]
    assert "1 members that are links, hidden or have no extension: b.png" in caplog.text


def test_shards_that_are_damaged_or_compressed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = pack(tmp_path / "train-0.tar", [("a.png", 1), ("b.png", 2)])
    whole = (tmp_path / "train-0.tar").read_bytes()
    (tmp_path / "train-1.tar.gz").write_bytes(b"")
    assert len(load_images(name, "train", labels=False)) == 2
    assert f"{tmp_path}: 1 shards are compressed, left out (unpack to .tar): train-1.tar.gz" in caplog.text
    for cut, message in ((700, "neither compressed nor cut short"), (1500, "damaged or cut short at byte 1024")):
        (tmp_path / "train-0.tar").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=rf"train-0\.tar: .*{message}"):
            load_images(name, "train", labels=False)
    (tmp_path / "train-0.tar").write_bytes(whole[:1024])  # between two members
    caplog.clear()
    assert len(load_images(name, "train", labels=False)) == 1
    assert "train-0.tar: no end mark after its last member; was it cut short?" in caplog.text
    with tarfile.open(tmp_path / "train-0.tar", "w:gz") as archive:
        archive.add(__file__, "a.png")
    with pytest.raises(ValueError, match=r"train-0\.tar: .*neither compressed nor cut short"):
        load_images(name, "train", labels=False)


def test_shards_of_no_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("00000.tar", "00001.tar"):
        shard(tmp_path / name, {"a": (1, 0)})
    assert len(load_images(f"wds/{tmp_path}", "train")) == 2
    with pytest.raises(NoSuchSplit, match="no split 'test'"):
        load_images(f"wds/{tmp_path}", "test")
    assert said(caplog) == []
    os.rename(tmp_path / "00000.tar", tmp_path / "val-00000.tar")
    shard(tmp_path / "train-00000.tar", {"a": (1, 0), "b": (2, 0)})
    assert len(load_images(f"wds/{tmp_path}", "train")) == 2
    assert said(caplog) == [f"{tmp_path}: 1 shards are of no split by their name: 00001.tar"]


@pytest.fixture(autouse=True)
def _all_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
