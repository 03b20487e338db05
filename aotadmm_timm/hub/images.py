"""The images to extract: a folder, a list of files, or a data set by timm's name; listed once, in a fixed order."""

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from aotadmm_timm.data import Images, load_images
from aotadmm_timm.data.decode import IMAGE_SUFFIXES, Decoding
from aotadmm_timm.data.folders import FileImages
from aotadmm_timm.data.listing import list_images, text_of
from aotadmm_timm.data.samples import unlabeled
from aotadmm_timm.errors import UserError

_DATA_SETS = ("hfds/", "wds/", "torch/")


@dataclass(frozen=True)
class ImageSource:
    """Images by index; can be pickled, so that worker processes may start in any way.

    Attributes:
        images: what is read; a label is -1 where there is none.
        ids: what row i is called, all different: a path relative to the folder or as listed, or a data set's own id.
        listed_ns: when this list was made, ns since the epoch.
    """

    images: Images
    ids: Sequence[str]
    listed_ns: int = field(default_factory=time.time_ns)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> np.ndarray | None:
        """(N,) int64 with -1 for unknown, or None if nothing says what the classes are."""
        return self.images.labels if (self.images.labels >= 0).any() else None

    @property
    def classes(self) -> list[str]:
        """Names of the labels."""
        return list(self.images.classes)

    def read(self, index: int) -> Image.Image:
        """An RGB picture. Raises UnreadableImage."""
        return self.images[index][0]

    def stamp(self, index: int) -> tuple[int, int] | None:
        """(size, time in ns of the last change of content or of what the name stands for) of the image's file.

        (-1, -1) if it has vanished; None for a data set.
        """
        if not isinstance(self.images, _ListedFiles):
            return None
        try:
            status = os.stat(self.images.path(index))
        except OSError:
            return -1, -1
        # A file moved or copied here keeps its old modification time; the inode's change time tells.
        return status.st_size, max(status.st_mtime_ns, status.st_ctime_ns)

    def digest(self) -> str:
        """A digest of the ids and stamps: it changes when a file is added, removed or written again."""
        digest = hashlib.sha256()
        for index, name in enumerate(self.ids):
            digest.update(f"{name}\0{self.stamp(index) or ''}\n".encode())
        return digest.hexdigest()


class _ListedFiles(FileImages):
    """Files that are called as they were listed."""

    def row_id(self, row: int) -> str:
        return text_of(self.files[row])

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.files[index])


def open_images(
    where: str,
    *,
    split: str = "train",
    input_key: str | None = None,
    target_key: str | None = None,
    max_pixels: int | None = None,
    sample_range: tuple[float, float] | None = None,
) -> ImageSource:
    """List the images that `where` means.

    Args:
        where: a folder, searched recursively (the sub-folder is the label, if every image lies in one); a .txt file
            with one path per line, relative to that file; `hfds/ID_OR_PATH`, `wds/PATH`, `torch/NAME` or `digits`.
        split, input_key, target_key: of a data set.
        max_pixels, sample_range: how files are decoded, see `data.decode.Decoding`.
    Raises: UserError naming what is missing or empty.
    """
    decoding = Decoding(max_pixels, sample_range)
    if os.path.isdir(where):
        return _folder(Path(where), decoding)
    if os.path.isfile(where):
        if not where.endswith(".txt"):
            raise UserError(f"{where}: expected a folder, a .txt file with one path per line, or a data set")
        return _file_list(Path(where), decoding)
    if where.startswith(_DATA_SETS) or where == "digits":
        images = load_images(
            where, split, input_key=input_key, target_key=target_key, labels=False,
            max_pixels=max_pixels, sample_range=sample_range,
        )  # fmt: skip
        return ImageSource(images, [images.id_of(index) for index in range(len(images))])
    raise UserError(f"{where}: no such folder, file or data set ({', '.join(_DATA_SETS)}digits)")


def _folder(root: Path, decoding: Decoding) -> ImageSource:
    listing = list_images(str(root))
    for note in listing.notes():
        print(f"note: {root}: {note}", file=sys.stderr)
    if not listing.files:
        raise UserError(f"{root}: no image files in it ({', '.join(sorted(IMAGE_SUFFIXES))})")
    files = sorted(listing.files)
    parents = [os.path.dirname(file) for file in files]
    classes = sorted(set(parents)) if all(parents) else []
    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number[parent] for parent in parents], np.int64) if classes else unlabeled(len(files))
    return _from_paths(files, root, labels, classes, decoding)


def _file_list(path: Path, decoding: Decoding) -> ImageSource:
    lines = [os.fsdecode(line) for line in path.read_bytes().splitlines() if line.strip()]
    files = sorted(set(lines))
    if not files:
        raise UserError(f"{path}: lists no files")
    if len(files) < len(lines):
        print(f"note: {path}: {len(lines) - len(files)} repeated lines count once", file=sys.stderr)
    return _from_paths(files, path.parent, unlabeled(len(files)), [], decoding)


def _from_paths(
    files: list[str], root: Path, labels: np.ndarray, classes: Sequence[str], decoding: Decoding
) -> ImageSource:
    names = [text_of(name) for name in classes]
    images = _ListedFiles(str(root), "all", labels, names, str(root), files)
    images.decoding = decoding
    return ImageSource(images, [text_of(file) for file in files])
