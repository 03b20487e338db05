"""What real processes read of a data set that counts."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aotadmm_timm.data.folders import FileImages
from aotadmm_timm.data.memory import in_memory
from aotadmm_timm.data.readable import only_readable

reads: Counter[int] = Counter()


class CountingImages(FileImages):
    def read(self, row: int) -> Image.Image:
        reads[row] += 1
        return super().read(row)


def open_counting(folder: Path) -> CountingImages:
    files = sorted(path.name for path in folder.glob("*.png"))
    return CountingImages("counted", "train", np.arange(len(files)) % 3, "abc", str(folder), files)


def read_together(folder: Path) -> dict[str, Any]:
    """In one process of a group: into memory, then the mere check; which rows this one read for each."""
    found: dict[str, Any] = {}
    images = in_memory(open_counting(folder))
    found |= {"memory": dict(reads), "pixels": images.pixels.copy(), "labels": images.labels.tolist()}
    found["ids"] = [images.id_of(i) for i in range(len(images))]
    reads.clear()
    assert only_readable(images) is images
    found["again"] = dict(reads)
    found["kept"] = only_readable(open_counting(folder)).rows.tolist()
    found["check"] = dict(reads)
    return found


def sizes_refused(folder: Path) -> str:
    try:
        in_memory(open_counting(folder))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "none"
