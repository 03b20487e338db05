"""Images that lie decoded in memory: once on each machine, however many processes train there."""

import logging
import os
import socket
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError

from .readable import decode_all
from .samples import Images

logger = logging.getLogger(__name__)


class PixelImages(Images):
    """Images of one size, decoded.

    Args:
        pixels: (N, 3, H, W) uint8.
        source: the images that were decoded, which know their names; by default they are numbered.
    """

    decoded: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        split: str,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        pixels: np.ndarray,
        source: Images | None = None,
    ) -> None:
        super().__init__(name, split, labels, classes)
        self.all_pixels, self.source = pixels, source

    @property
    def pixels(self) -> np.ndarray:
        """(N, 3, H, W) uint8; a copy, if the images are a subset."""
        whole = len(self.rows) == len(self.all_pixels) and bool((np.diff(self.rows) == 1).all())
        return self.all_pixels if whole else self.all_pixels[self.rows]

    def read(self, row: int) -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(self.all_pixels[row].transpose(1, 2, 0)))

    def row_id(self, row: int) -> str:
        return super().row_id(row) if self.source is None else self.source.id_of(row)


class MixedSizes(UserError):
    """Two images have different sizes."""


def in_memory(images: Images) -> PixelImages:
    """Decode all images, without those that cannot be read: each is named in the log.

    The processes of a group that run on one machine share the work and the memory: every process has to call it.

    Raises: MixedSizes (on all processes); UserError if no image can be read.
    """
    if isinstance(images, PixelImages):
        return images
    height, width = images.image_size
    pixels, rank, world = _allocate((len(images), 3, height, width))

    def keep(index: int, picture: Image.Image) -> None:
        if picture.size != (width, height):
            raise MixedSizes(f"{images.id_of(index)}: {picture.size[1]}x{picture.size[0]}, others {height}x{width}")
        pixels[index] = np.asarray(picture).transpose(2, 0, 1)

    if failed := decode_all(images, keep, rank=rank, world=world):
        readable = np.setdiff1d(np.arange(len(images)), failed)
        pixels, images = pixels[readable], images.subset(readable)
    return PixelImages(images.name, images.split, images.labels, images.classes, pixels, images)


def _allocate(shape: tuple[int, ...]) -> tuple[np.ndarray, int, int]:
    """Room for uint8 pixels, which the processes of this machine share; which of them this one is, and how many.

    The room is a file that all of them map and that is removed at once: nothing is left, however they end. Where there
    is no room for it, or a process does not see it (machines of one name), each process has its own.
    """
    if distributed.world_size() == 1:
        return np.empty(shape, np.uint8), 0, 1
    hosts = distributed.all_gather_objects(socket.gethostname())
    mates = [rank for rank, host in enumerate(hosts) if host == hosts[distributed.rank()]]
    place = mates.index(distributed.rank())
    files: list[Any] = distributed.all_gather_objects(_make_file(int(np.prod(shape))) if place == 0 else None)
    path = files[mates[0]]
    pixels = None
    try:
        if path is not None and os.path.isfile(path):
            pixels = np.memmap(path, np.uint8, "r+", shape=shape)
        mapped = distributed.all_gather_objects(pixels is not None)
    finally:
        if path is not None and place == 0:
            os.unlink(path)
    if pixels is None or not all(mapped[rank] for rank in mates):
        return np.empty(shape, np.uint8), 0, 1
    return pixels, place, len(mates)


def _make_file(size: int) -> str | None:
    """A file of `size` bytes whose room is reserved, in memory if it can be; None if there is no room for it."""
    reserve = getattr(os, "posix_fallocate", None)  # a sparse file would kill the process on a full disk
    for folder in ("/dev/shm", tempfile.gettempdir()):
        path = None
        try:
            descriptor, path = tempfile.mkstemp(prefix="aotadmm_timm_", dir=folder)
            with os.fdopen(descriptor):
                if reserve is not None:
                    reserve(descriptor, 0, size)
                    return path
        except OSError as error:
            logger.info("no room for %d bytes in %s: %s", size, folder, error)
        if path is not None:
            os.unlink(path)
    logger.warning("no room for %d shared bytes in memory or on disk: every process decodes all images", size)
    return None
