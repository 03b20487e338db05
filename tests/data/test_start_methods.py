"""Worker processes that start anew, as they do on macOS and from Python 3.14 on, read what a forked one reads."""

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from data.files import shard, write
from data.test_unlabeled import parquet

from aotadmm_timm.data import Images, load_images
from aotadmm_timm.data.batches import LoaderBatches, make_batches
from aotadmm_timm.data.decode import Decoding, UnreadableImage
from aotadmm_timm.data.library import LibraryImages
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.hub.images import open_images


@pytest.fixture
def kinds(tmp_path: Path) -> dict[str, Images]:
    """A data set of each kind, of four images; the second of the folder's is damaged."""
    for i in range(4):
        write(tmp_path / "folder" / "train" / "ab"[i % 2] / f"{i}.png", i)
    (tmp_path / "folder" / "train" / "a" / "2.png").write_bytes(b"no")
    shard(tmp_path / "shards" / "0.tar", {str(i): (i, i % 2) for i in range(4)})
    pictures = torchvision.datasets.ImageFolder(str(tmp_path / "folder" / "train"))
    return {
        "digits": load_images("digits", "test", num_samples=4),
        "folder": load_images(str(tmp_path / "folder"), "train", max_pixels=10**8),
        "shards": load_images(f"wds/{tmp_path / 'shards'}", "train"),
        "hfds": load_images(parquet(tmp_path / "parquet"), "train", root=tmp_path / "cache", labels=False),
        "torch": LibraryImages("torch/x", "train", [0, 1], "ab", pictures),
        "extraction": open_images(str(tmp_path / "folder")).images,
    }


def values(images: Images) -> list[int | str]:
    found: list[int | str] = []
    for i in range(len(images)):
        try:
            found.append(int(np.asarray(images[i][0])[0, 0, 0]))
        except UnreadableImage as error:
            found.append(str(error))
    return found


def test_every_kind_survives_pickling(kinds: dict[str, Images]) -> None:
    for kind, images in kinds.items():
        again = pickle.loads(pickle.dumps(images))
        assert values(again) == values(images), kind
        assert again.labels.tolist() == images.labels.tolist()
        assert again.subset([1]).id_of(0) == images.id_of(1)
    assert pickle.loads(pickle.dumps(kinds["folder"])).decoding == Decoding(max_pixels=10**8)
    assert max(len(pickle.dumps(kinds[kind])) for kind in ("folder", "shards")) < 5000  # no pixels travel


@pytest.fixture(params=["spawn", "forkserver"])
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


def test_workers_that_start_anew(start_method: str, kinds: dict[str, Images]) -> None:
    """Both kinds at once: their workers spend the time on imports."""
    crop, loaders = MultiCrop(num_local=1), {}
    for kind in ("folder", "shards"):
        for workers in (1, 0):
            loaders[kind, workers] = make_batches(kinds[kind], crop, batch_size=4, num_workers=workers, memory_limit=0)
            assert isinstance(loaders[kind, workers], LoaderBatches)
    steps = zip(*(batches(1, 3) for batches in loaders.values()), strict=True)
    for apart, here, shards_apart, shards_here in steps:
        for a, b, readable in ((apart, here, 3), (shards_apart, shards_here, 4)):
            np.testing.assert_array_equal(a.indices, b.indices)
            assert len(a.indices) == readable
            assert a.labels.tolist() == b.labels.tolist()
            assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
    unreadable = loaders["folder", 1].unreadable.values()  # type: ignore[union-attr]
    assert [Path(reason.partition(":")[0]).name for reason in unreadable] == ["2.png"]
