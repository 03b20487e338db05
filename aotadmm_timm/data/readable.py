"""Which images decode; the others are named and counted."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from .decode import UnreadableImage
from .samples import Images

logger = logging.getLogger(__name__)


def readable(images: Images, *, threads: int = 2) -> Iterator[tuple[int, Image.Image]]:
    """(index, picture) of every image that decodes, in order; the others are named in the log, and counted."""

    def read(index: int) -> Image.Image | UnreadableImage:
        try:
            return images[index][0]
        except UnreadableImage as err:
            return err

    failed = 0
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(images), 1024):  # not all at once: pictures would pile up before they are used
            chunk = range(start, min(start + 1024, len(images)))
            for index, picture in zip(chunk, pool.map(read, chunk), strict=True):
                if isinstance(picture, UnreadableImage):
                    failed += 1
                    logger.warning("left out, unreadable: %s", picture)
                else:
                    yield index, picture
    if failed:
        logger.warning("%s: %d of %d images are unreadable", images.name, failed, len(images))


def only_readable(images: Images) -> Images:
    """`images` without those that do not decode, each named in the log."""
    kept = [index for index, _ in readable(images)]
    return images if len(kept) == len(images) else images.subset(kept)
