"""Batches: order, ranks, restarts, both paths, unreadable images."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aotadmm_timm.data import load_images
from aotadmm_timm.data.batches import Batch, LoaderBatches, MemoryBatches, make_batches
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.data.photometric import Photometric
from aotadmm_timm.data.sampler import EpochSampler

CROP = MultiCrop(num_local=2, photometric=Photometric(solarize_prob=0.0))


def same(a: Batch, b: Batch, tolerance: float = 1e-5) -> None:
    assert (a.step, a.epoch) == (b.step, b.epoch)
    np.testing.assert_array_equal(a.indices, b.indices)
    assert torch.equal(a.labels, b.labels)
    for x, y in zip(a.views, b.views, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six smooth pictures, named so that one class holds even, the other odd numbers."""
    coarse = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    for i, pixels in enumerate(coarse):
        path = tmp_path / "train" / "ab"[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(path)
    return tmp_path


def test_an_epoch_is_a_permutation_without_the_incomplete_batch() -> None:
    sampler = EpochSampler(10, 3, seed=1)
    assert sampler.batches_per_epoch == 3
    steps = list(sampler.steps(0, 6))
    assert [(s, e) for s, e, _ in steps] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    first, second = (np.concatenate([i for _, e, i in steps if e == epoch]) for epoch in (0, 1))
    assert len(set(first)) == len(set(second)) == 9
    assert (first != second).any()


def test_epochs_are_whole_optimizer_steps() -> None:
    sampler = EpochSampler(22, 2, accumulate=3)  # 11 batches: 9 of them
    assert sampler.batches_per_epoch == 9
    assert [e for _, e, _ in sampler.steps(0, 18)] == [0] * 9 + [1] * 9
    with pytest.raises(ValueError, match=r"batch of 24 images .*22; use a smaller --batch-size or --accumulate than 3"):
        EpochSampler(22, 8, accumulate=3)


def test_any_step_can_be_the_first() -> None:
    sampler = EpochSampler(10, 2, seed=1)
    for (s, e, a), (t, f, b) in zip(sampler.steps(3, 12), list(sampler.steps(0, 12))[3:], strict=True):
        assert (s, e) == (t, f)
        np.testing.assert_array_equal(a, b)


def test_ranks_together_see_the_batch_of_one_process() -> None:
    images = load_images("digits", "train", num_samples=50)
    whole = make_batches(images, CROP, batch_size=8, seed=2)
    ranks = [make_batches(images, CROP, batch_size=4, seed=2, rank=r, world=2) for r in (0, 1)]
    for one, *parts in zip(whole(5, 9), *(r(5, 9) for r in ranks), strict=True):
        np.testing.assert_array_equal(np.concatenate([p.indices for p in parts]), one.indices)
        assert torch.equal(torch.cat([p.labels for p in parts]), one.labels)
        for joined, view in zip(zip(*(p.views for p in parts), strict=True), one.views, strict=True):
            torch.testing.assert_close(torch.cat(joined, 1), view, rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_and_loader_agree(folder: Path, num_workers: int) -> None:
    images = load_images(str(folder), "train")
    memory = make_batches(images, CROP, batch_size=4)
    loader = make_batches(images, CROP, batch_size=4, num_workers=num_workers, memory_limit=0)
    assert isinstance(memory, MemoryBatches)
    assert isinstance(loader, LoaderBatches)
    for a, b in zip(memory(1, 5), loader(1, 5), strict=True):
        same(a, b, tolerance=0.1)  # Pillow rounds to whole numbers
        assert (a.views[0] - b.views[0]).abs().mean() < 0.01


def test_labels_belong_to_their_images(folder: Path) -> None:
    images = load_images(str(folder), "train")
    for batch in make_batches(images, CROP, batch_size=4)(0, 3):
        for index, label in zip(batch.indices, batch.labels, strict=True):
            assert images.id_of(index).endswith(("0.png", "2.png", "4.png", "6.png", "8.png")) == (label == 0)


def test_unreadable_images_are_named_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = folder / "train" / "a" / "00.png"  # the first of all
    bad.write_bytes(bad.read_bytes()[:60])
    images = load_images(str(folder), "train")
    with caplog.at_level(logging.WARNING):
        memory = make_batches(images, CROP, batch_size=2)
    assert "00.png" in caplog.text
    assert "1 of 12 images are unreadable" in caplog.text
    assert len(memory.images) == 11
    assert sum(label == 0 for label in memory.images.labels) == 5
    caplog.clear()
    loader = make_batches(images, CROP, batch_size=12, num_workers=0, memory_limit=0)
    with caplog.at_level(logging.WARNING):
        batch, again = loader(0, 2)
    assert caplog.text.count("00.png") == 1  # named once, though met in each epoch
    assert "unreadable (1 so far)" in caplog.text
    assert len(again.indices) == 11
    assert len(batch.indices) == len(batch.labels) == batch.views[0].shape[1] == 11


def test_images_of_several_sizes_go_through_the_loader(folder: Path) -> None:
    Image.new("RGB", (50, 40)).save(folder / "train" / "a" / "99.png")
    batches = make_batches(load_images(str(folder), "train"), CROP, batch_size=13, num_workers=0)
    assert isinstance(batches, LoaderBatches)
    assert next(iter(batches(0, 1))).views[0].shape == (2, 13, 3, 32, 32)


def test_a_batch_without_one_readable_image_is_an_error(folder: Path) -> None:
    for path in (folder / "train").rglob("*.png"):
        path.write_bytes(b"no")
    with pytest.raises(ValueError, match="not one of 12 images can be read"):
        make_batches(load_images(str(folder), "train"), CROP, batch_size=4)
    loader = LoaderBatches(load_images(str(folder), "train"), CROP, EpochSampler(12, 4), torch.device("cpu"), 0)
    with pytest.raises(ValueError, match=r"no image of a batch could be read; the first: .*\.png: not an image"):
        next(iter(loader(0, 1)))


@pytest.mark.parametrize(("batch", "world"), [(11, 1), (6, 2), (0, 1)])
def test_batches_that_cannot_be(batch: int, world: int) -> None:
    with pytest.raises(ValueError, match=r"larger than the data set of 10; use a smaller|must be positive"):
        EpochSampler(10, batch, world=world)
