"""Images by index, with labels where there are any: what a data set of every kind is opened as."""

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from aotadmm_timm.errors import UserError

from .decode import AS_IT_IS, UnreadableImage


class Images(Dataset[tuple[Image.Image, int]]):
    """Item i is (RGB image, label), the label -1 where there is none.

    Each kind of data set is a subclass that reads one row. Instances can be pickled, so that worker processes may start
    by fork, spawn or forkserver.

    Args:
        name, split: what was opened.
        labels: (N,) integers, -1 for none; the number of images follows from them.
        classes: class names; label i is classes[i]. Empty if there are no labels.
    Attributes:
        labels: (N,) int64.
        rows: (N,) row numbers behind the indices 0 .. N-1.
        has_labels: whether every image has one.
        decoding: how files are decoded where they do not say it themselves; may be set.
    """

    def __init__(self, name: str, split: str, labels: Sequence[int] | np.ndarray, classes: Sequence[str] = ()) -> None:
        self.name, self.split, self.classes = name, split, tuple(classes)
        self.decoding = AS_IT_IS
        self.labels = np.asarray(labels, np.int64)
        self.rows = np.arange(len(self.labels))

    decoded: ClassVar[bool] = False  # whether the pixels are there already: every image can then be read

    def read(self, row: int) -> Image.Image:
        """The RGB image of a row. Raises UnreadableImage."""
        raise NotImplementedError

    def row_id(self, row: int) -> str:
        """What names a row in a message."""
        return f"{self.name} {self.split}[{row}]"

    @property
    def has_labels(self) -> bool:
        return bool(len(self)) and bool((self.labels >= 0).all())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.read(int(self.rows[index])), int(self.labels[index])

    def id_of(self, index: int) -> str:
        return self.row_id(int(self.rows[index]))

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the first image that can be read. Raises UserError if none can."""
        for row in self.rows:
            try:
                width, height = self.read(int(row)).size
            except UnreadableImage:
                continue
            return height, width
        first = f"; the first: {self.id_of(0)}" if len(self) else ""
        raise UserError(f"{self.name}: not one of {len(self)} images can be read{first}")

    def subset(self, indices: Sequence[int] | np.ndarray) -> Self:
        indices = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.labels, part.rows = self.labels[indices], self.rows[indices]
        return part


def unlabeled(count: int) -> np.ndarray:
    """The labels of `count` images that have none."""
    return np.full(count, -1, np.int64)
