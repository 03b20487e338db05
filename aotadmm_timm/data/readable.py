"""Decoding whole data sets: by threads, shared among processes, and with the unreadable images named and counted."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError

from .decode import UnreadableImage
from .samples import Images

logger = logging.getLogger(__name__)

_THREADS = 2
_AHEAD = 1024  # at most so many are decoded before they are used: more would pile up
_SECONDS = 10.0  # between two meetings of the processes, so that none waits in a collective for much longer


def decode_all(
    images: Images, use: Callable[[int, Image.Image], None], *, rank: int | None = None, world: int | None = None
) -> list[int]:
    """Decode this process's share of `images`; every process of a group has to call it.

    Args:
        use: called with the index and the picture of each image of the share that decodes.
        rank, world: which of how many shares is this process's; by default every process of the group has its own.
    Returns: the sorted indices of the images that no process could read; each is named in the log, and counted.
    Raises: UserError on all processes, if `use` raises one on any, or if they see different numbers of images.
    """
    rank, world = (distributed.rank(), distributed.world_size()) if rank is None or world is None else (rank, world)
    seen = distributed.all_gather_objects(len(images))
    if len(set(seen)) > 1:
        raise UserError(f"{images.name}: the processes see different numbers of images: {', '.join(map(str, seen))}")
    decoding = _decode(images, np.array_split(np.arange(len(images)), world)[rank])
    failed: dict[int, str] = {}
    everyone: list[tuple[bool, UserError | None]] = [(False, None)]
    while not all(done for done, _ in everyone):
        everyone = distributed.all_gather_objects(_work(decoding, use, failed))
        if errors := [error for _, error in everyone if error is not None]:
            raise errors[0]
    failed = {index: reason for part in distributed.all_gather_objects(failed) for index, reason in part.items()}
    for index in sorted(failed):
        logger.warning("left out, unreadable: %s", failed[index])
    if failed:
        logger.warning("%s: %d of %d images are unreadable", images.name, len(failed), len(images))
    return sorted(failed)


def only_readable(images: Images) -> Images:
    """`images` without those that do not decode, each named in the log.

    The processes of a group share the work: every one of them has to call it.
    """
    failed = [] if images.decoded else decode_all(images, lambda index, picture: None)
    return images.subset(np.setdiff1d(np.arange(len(images)), failed)) if failed else images


def _work(
    decoding: Iterator[tuple[int, Image.Image | UnreadableImage]],
    use: Callable[[int, Image.Image], None],
    failed: dict[int, str],
) -> tuple[bool, UserError | None]:
    """Go on for some seconds, or to the end where there is nobody to meet; whether it was reached, and an error."""
    began = time.monotonic()
    for index, picture in decoding:
        if isinstance(picture, UnreadableImage):
            failed[index] = str(picture)
            continue
        try:
            use(index, picture)
        except UserError as error:
            return True, error
        if distributed.world_size() > 1 and time.monotonic() - began > _SECONDS:
            return False, None
    return True, None


def _decode(images: Images, indices: Sequence[int] | np.ndarray) -> Iterator[tuple[int, Image.Image | UnreadableImage]]:
    """(index, picture or why there is none), in order."""

    def read(index: int) -> Image.Image | UnreadableImage:
        try:
            return images[index][0]
        except UnreadableImage as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(indices), _AHEAD):
            chunk = [int(index) for index in indices[start : start + _AHEAD]]
            yield from zip(chunk, pool.map(read, chunk), strict=True)
