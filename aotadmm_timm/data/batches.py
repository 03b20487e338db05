"""Batches of views from any step on, cut on the device from images in memory, or in worker processes."""

import logging
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aotadmm_timm.errors import UserError

from .decode import UnreadableImage
from .memory import MixedSizes, PixelImages, in_memory
from .multicrop import MultiCrop
from .sampler import EpochSampler
from .samples import Images

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """What one step sees: `views` as MultiCrop gives them, `indices` (B,) into the data set, `labels` (B,) int64 (-1
    for none)."""

    step: int
    epoch: int
    indices: np.ndarray
    labels: Tensor
    views: list[Tensor]


# A crop cut as a matrix product costs as much as its whole image has pixels, however small the box; Pillow, in worker
# processes, reads the box alone. Above this side images go there even if they fit in memory.
_LARGEST_SIDE = 128


class MemoryBatches:
    """Views cut on the device from images that lie in memory."""

    def __init__(self, images: PixelImages, crop: MultiCrop, sampler: EpochSampler, device: torch.device) -> None:
        self.images, self.labels = images, torch.from_numpy(images.labels)
        self.pixels = torch.from_numpy(images.pixels).to(device)
        self.crop, self.sampler, self.device = crop, sampler, device

    def __call__(self, start: int, stop: int) -> Iterator[Batch]:
        for step, epoch, index in self.sampler.steps(start, stop):
            rows = torch.from_numpy(index)
            views = self.crop(self.pixels[rows.to(self.device)], epoch, index)
            yield Batch(step, epoch, index, self.labels[rows], views)


class _Crops(Dataset):
    """uint8 crops of single images, made in a worker; the reason in place of an unreadable one, never its neighbor."""

    def __init__(self, images: Images, crop: MultiCrop) -> None:
        self.images, self.crop = images, crop

    def __getitem__(self, place: tuple[int, int]) -> tuple[int, int, list[np.ndarray] | str]:
        epoch, index = place
        try:
            picture, label = self.images[index]
        except UnreadableImage as err:
            return index, -1, str(err)
        return index, label, self.crop.crop_picture(picture, epoch, index)


class _Places:
    """(epoch, index) of the images of each batch; made as they are needed, a long run has billions."""

    def __init__(self, sampler: EpochSampler, start: int, stop: int) -> None:
        self.sampler, self.start, self.stop = sampler, start, stop

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for _, epoch, index in self.sampler.steps(self.start, self.stop):
            yield [(epoch, int(i)) for i in index]


def _collate(items: list[Any]) -> tuple[np.ndarray, Tensor, list[Tensor], dict[int, str]]:
    failed = {index: reason for index, _, reason in items if isinstance(reason, str)}
    read = [item for item in items if item[0] not in failed]
    if not read:
        raise UserError(f"no image of a batch could be read; the first: {next(iter(failed.values()))}")
    groups = [torch.from_numpy(np.stack(g, 1)) for g in zip(*(views for _, _, views in read), strict=True)]
    return np.array([i for i, _, _ in read]), torch.tensor([label for _, label, _ in read]), groups, failed


def _outlive_sigterm(worker: int) -> None:
    # A scheduler signals the whole process group; the training process finishes its step first, and needs its workers.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class LoaderBatches:
    """Views of images of any size: cropped in worker processes, colored in batches on the device.

    `unreadable` collects what could not be read so far, by index; each is named in the log once.
    """

    def __init__(
        self, images: Images, crop: MultiCrop, sampler: EpochSampler, device: torch.device, num_workers: int
    ) -> None:
        if crop.rotate:
            raise UserError(
                "rotated crops need images of one size, at most 128x128, that fit in memory; --views natural has none"
            )
        self.images, self.crop, self.sampler = images, crop, sampler
        self.device, self.num_workers = device, num_workers
        self.unreadable: dict[int, str] = {}

    def __call__(self, start: int, stop: int) -> Iterator[Batch]:
        data: Any = _Crops(self.images, self.crop)
        sampler: Any = _Places(self.sampler, start, stop)
        loader = DataLoader(
            data,
            batch_sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_outlive_sigterm,
        )
        steps = self.sampler.steps(start, stop)
        for (step, epoch, _), (index, labels, groups, failed) in zip(steps, loader, strict=True):
            for bad in failed.keys() - self.unreadable.keys():
                self.unreadable[bad] = failed[bad]
                logger.warning("left out, unreadable (%d so far): %s", len(self.unreadable), failed[bad])
            floats = [g.to(self.device, torch.float32, non_blocking=True).div_(255) for g in groups]
            yield Batch(step, epoch, index, labels, self.crop.color(floats, epoch, index))


def make_batches(
    images: Images,
    crop: MultiCrop,
    *,
    batch_size: int,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    accumulate: int = 1,
    device: torch.device | None = None,
    num_workers: int = 2,
    memory_limit: int = 4 << 30,
) -> MemoryBatches | LoaderBatches:
    """In memory if all images have one size, at most 128 pixels a side, and fit into `memory_limit` bytes.

    Others go through worker processes.

    Raises: UserError if the global batch is larger than the data set.
    """
    device = device or torch.device("cpu")
    height, width = images.image_size
    small = max(height, width) <= _LARGEST_SIDE and len(images) * 3 * height * width <= memory_limit
    if small:
        try:
            pictures = in_memory(images)
        except MixedSizes as err:
            logger.info("not kept in memory: %s", err)
        else:
            sampler = EpochSampler(len(pictures), batch_size, seed, rank, world, accumulate)
            return MemoryBatches(pictures, crop, sampler, device)
    sampler = EpochSampler(len(images), batch_size, seed, rank, world, accumulate)
    return LoaderBatches(images, crop, sampler, device, num_workers)
