"""Images in memory: decoded once by all processes of a machine together, and the same as from the files."""

from pathlib import Path

import numpy as np
import pytest
from data.counting import open_counting, read_together, sizes_refused
from PIL import Image
from processes import run_processes

from aotadmm_timm.data import load_images
from aotadmm_timm.data.memory import in_memory

COUNT, BAD = 21, 13


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of noise; one of them, in the second half, is damaged."""
    (tmp_path / "images").mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (COUNT, 9, 7, 3), dtype=np.uint8)):
        path = tmp_path / "images" / f"{i:02}.png"
        Image.fromarray(pixels).save(path)
        if i == BAD:
            path.write_bytes(path.read_bytes()[:60])
    return tmp_path / "images"


def test_two_processes_decode_each_image_once(folder: Path, tmp_path: Path) -> None:
    first, second = run_processes(read_together, 2, folder, folder=tmp_path)
    for step in ("memory", "check"):
        a, b = first[step], second[step]
        own = {row: count for row, count in (a | b).items() if row != 0}  # all read the first one, for its size
        assert set(own) == set(range(1, COUNT)), step
        assert set(own.values()) == {1}, step
        assert len(a) >= 10 <= len(b), step
        assert not (a.keys() & b.keys()) - {0}, step
    good = [i for i in range(COUNT) if i != BAD]
    source = open_counting(folder)
    want = np.stack([np.asarray(source[i][0]).transpose(2, 0, 1) for i in good])
    for found in (first, second):
        np.testing.assert_array_equal(found["pixels"], want)
        assert found["labels"] == [i % 3 for i in good]
        assert [Path(each).name for each in found["ids"]] == [f"{i:02}.png" for i in good]
        assert found["again"] == {}
        assert found["kept"] == good


def test_all_processes_refuse_mixed_sizes(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(folder / "20.png")  # of the second process's share
    errors = run_processes(sizes_refused, 2, folder, folder=tmp_path)
    assert errors[0] == errors[1]
    assert errors[0].startswith("MixedSizes: ")
    assert errors[0].endswith("20.png: 8x8, others 9x7")


def test_pixels_are_those_of_the_files(folder: Path) -> None:
    images = open_counting(folder)
    decoded = in_memory(images)
    assert len(decoded) == COUNT - 1
    assert decoded.pixels.shape == (COUNT - 1, 3, 9, 7)
    part = decoded.subset([15, 2])
    np.testing.assert_array_equal(np.asarray(part[0][0]), np.asarray(images[16][0]))
    assert part[0][1] == images[16][1]
    assert part.id_of(0) == images.id_of(16)
    np.testing.assert_array_equal(part.pixels[1], decoded.pixels[2])
    assert in_memory(part) is part
    digits = load_images("digits", "train")
    assert in_memory(digits) is digits
