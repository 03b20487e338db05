"""Images that lie decoded in memory."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .readable import readable
from .samples import Images


class PixelImages(Images):
    """Images of one size, decoded.

    Args:
        pixels: (N, 3, H, W) uint8.
        ids: what names each row; by default its number.
    """

    def __init__(
        self,
        name: str,
        split: str,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        pixels: np.ndarray,
        ids: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, split, labels, classes)
        self.pixels, self.ids = pixels, ids

    def read(self, row: int) -> Image.Image:
        return Image.fromarray(self.pixels[row].transpose(1, 2, 0))

    def row_id(self, row: int) -> str:
        return super().row_id(row) if self.ids is None else self.ids[row]


def to_memory(images: Images) -> tuple[Tensor, Images]:
    """All pixels as one uint8 tensor (N, 3, H, W), and the images that could be read.

    Unreadable images are left out, each named in the log. Raises ValueError if the sizes differ.
    """
    height, width = images.image_size
    pixels = np.empty((len(images), 3, height, width), np.uint8)
    kept: list[int] = []
    for index, picture in readable(images):
        if picture.size != (width, height):
            raise ValueError(f"{images.id_of(index)}: {picture.size[1]}x{picture.size[0]}, others {height}x{width}")
        pixels[len(kept)] = np.asarray(picture).transpose(2, 0, 1)
        kept.append(index)
    return torch.from_numpy(pixels[: len(kept)]), images if len(kept) == len(images) else images.subset(kept)
