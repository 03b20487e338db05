"""The images to extract: a folder, a list of files, or a data set by timm's name; listed once, in a fixed order."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from aotadmm_timm.data.datasets import load_images
from aotadmm_timm.data.decode import IMAGE_SUFFIXES, read_image

_DATA_SETS = ("hfds/", "wds/", "torch/")


@dataclass(frozen=True)
class ImageSource:
    """Images by index.

    Attributes:
        ids: what row i is called, all different: a path relative to the folder or as listed, or a data set's own id.
        labels: (N,) int64 with -1 for unknown, or None if nothing says what the classes are.
        classes: names of the labels.
        read: index -> RGB picture; raises UnreadableImage.
        stamp: index -> (size, time in ns of the last change of content or of what the name stands for) of the file,
            (-1, -1) if it has vanished; None for a data set.
        listed_ns: when this list was made, ns since the epoch.
    """

    ids: Sequence[str]
    labels: np.ndarray | None
    classes: Sequence[str]
    read: Callable[[int], Image.Image]
    stamp: Callable[[int], tuple[int, int]] | None = None
    listed_ns: int = field(default_factory=time.time_ns)

    def __len__(self) -> int:
        return len(self.ids)

    def digest(self) -> str:
        """A digest of the ids and stamps: it changes when a file is added, removed or written again."""
        digest = hashlib.sha256()
        for index, name in enumerate(self.ids):
            digest.update(f"{name}\0{self.stamp(index) if self.stamp else ''}\n".encode())
        return digest.hexdigest()


def open_images(
    where: str, *, split: str = "train", input_key: str | None = None, target_key: str | None = None
) -> ImageSource:
    """List the images that `where` means.

    Args:
        where: a folder, searched recursively (the sub-folder is the label, if every image lies in one); a .txt file
            with one path per line, relative to that file; `hfds/ID_OR_PATH`, `wds/PATH`, `torch/NAME` or `digits`.
        split, input_key, target_key: of a data set.
    Raises: ValueError or FileNotFoundError naming what is missing or empty.
    """
    if os.path.isdir(where):
        return _folder(Path(where))
    if os.path.isfile(where):
        if not where.endswith(".txt"):
            raise ValueError(f"{where}: expected a folder, a .txt file with one path per line, or a data set")
        return _file_list(Path(where))
    if where.startswith(_DATA_SETS) or where == "digits":
        images = load_images(where, split, input_key=input_key, target_key=target_key, labels=False)
        ids = [images.id_of(index) for index in range(len(images))]
        labels = images.labels if (images.labels >= 0).any() else None
        return ImageSource(ids, labels, images.classes, lambda index: images[index][0])
    raise FileNotFoundError(f"{where}: no such folder, file or data set ({', '.join(_DATA_SETS)}digits)")


def _folder(root: Path) -> ImageSource:
    files = sorted(_walk(root))
    if not files:
        raise ValueError(f"{root}: no image files in it ({', '.join(sorted(IMAGE_SUFFIXES))})")
    parents = [os.path.dirname(file) for file in files]
    classes = sorted(set(parents)) if all(parents) else []
    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number[parent] for parent in parents], np.int64) if classes else None
    return _from_paths(files, root, labels, classes)


def _walk(root: Path) -> Iterator[str]:
    """Image files below `root`, as paths relative to it. Links are followed, but no folder is entered twice."""

    def unreadable(error: OSError) -> None:
        raise ValueError(f"{error.filename}: {error.strerror}") from error

    entered, skipped = set(), 0
    for folder, inner, files in os.walk(root, followlinks=True, onerror=unreadable):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in entered:
            inner.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        for file in files:
            path = os.path.join(folder, file)
            if os.path.splitext(file)[1].lower() not in IMAGE_SUFFIXES:
                skipped += 1
            elif not os.path.exists(path) or os.path.isfile(path):  # a dangling link is listed, and then fails by name
                yield os.path.relpath(path, root).replace(os.sep, "/")
    if skipped:
        print(f"note: {root}: {skipped} files are not images by their ending and were passed over", file=sys.stderr)


def _file_list(path: Path) -> ImageSource:
    lines = [os.fsdecode(line) for line in path.read_bytes().splitlines() if line.strip()]
    files = sorted(set(lines))
    if not files:
        raise ValueError(f"{path}: lists no files")
    if len(files) < len(lines):
        print(f"note: {path}: {len(lines) - len(files)} repeated lines count once", file=sys.stderr)
    return _from_paths(files, path.parent, None, [])


def _from_paths(files: list[str], root: Path, labels: np.ndarray | None, classes: Sequence[str]) -> ImageSource:
    ids = [_text(file) for file in files]

    def read(index: int) -> Image.Image:
        return read_image(os.path.join(root, files[index]), name=ids[index])

    def stamp(index: int) -> tuple[int, int]:
        try:
            status = os.stat(os.path.join(root, files[index]))
        except OSError:
            return -1, -1
        # A file moved or copied here keeps its old modification time; the inode's change time tells.
        return status.st_size, max(status.st_mtime_ns, status.st_ctime_ns)

    return ImageSource(ids, labels, classes, read, stamp)


def _text(path: str) -> str:
    """A path as valid UTF-8: bytes of another encoding are written as `\\xNN`. The same object if nothing changes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    return path
