"""Batches of whole images, in order, as a model wants to see them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from .decode import read_image, to_rgb
from .preprocessing import in_channels, preprocessing
from .samples import Images

Pictures = Images | Sequence[Image.Image | str | Path]


class _Transformed(Dataset):
    def __init__(self, images: Pictures, transform: Callable, indices: np.ndarray, in_chans: int) -> None:
        self.images, self.transform, self.indices, self.in_chans = images, transform, indices, in_chans

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        index = int(self.indices[position])
        if isinstance(self.images, Images):
            image, label = self.images[index]
        else:
            item = self.images[index]
            image, label = (to_rgb(item) if isinstance(item, Image.Image) else read_image(item)), -1
        if self.in_chans == 1:
            image = image.convert("L")
        return self.transform(image), label


def eval_loader(
    images: Pictures,
    model: torch.nn.Module,
    *,
    batch_size: int = 256,
    num_workers: int = 0,
    indices: Sequence[int] | np.ndarray | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> DataLoader:
    """Batches (B, C, H, W) float and labels (B,) int64 (-1 if unlabeled), in order, as `model` expects its input.

    Args:
        images: images of a data set, or PIL images and paths.
        model: a timm model; its preprocessing is used.
        indices: the images to visit, in this order; all by default.
    Raises: UnreadableImage for an image that does not decode.
    """
    chosen = np.arange(len(images)) if indices is None else np.asarray(indices, np.int64)
    transform = preprocessing(model, img_size=img_size)
    dataset: Any = _Transformed(images, transform, chosen, in_channels(model))
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, num_workers=num_workers)
