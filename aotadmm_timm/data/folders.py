"""Data sets that are folders of image files: one sub-folder for each class, or images without labels."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from aotadmm_timm.errors import UserError

from .decode import IMAGE_SUFFIXES, read_image
from .listing import few, list_images, text_of
from .samples import Images, unlabeled
from .splits import EVALUATION_SPLITS, NoSuchSplit, choose_split

logger = logging.getLogger(__name__)


class FileImages(Images):
    """Image files: row i is `files[i]`, relative to `root`."""

    def __init__(
        self,
        name: str,
        split: str,
        labels: Sequence[int] | np.ndarray,
        classes: Sequence[str],
        root: str,
        files: Sequence[str],
    ) -> None:
        super().__init__(name, split, labels, classes)
        self.root, self.files = root, files

    def read(self, row: int) -> Image.Image:
        return read_image(os.path.join(self.root, self.files[row]), name=self.row_id(row), decoding=self.decoding)

    def row_id(self, row: int) -> str:
        return text_of(os.path.join(self.root, self.files[row]))


def folder(name: str, split: str, *, classes: Sequence[str] | None, need_labels: bool = True) -> FileImages:
    """The images of a folder, searched recursively. A sub-folder is a class, and keeps its number if it is empty.

    Images that lie beside class folders have no label: they are left out (said aloud) where labels are needed;
    elsewhere all images then count as unlabeled.
    """
    root = _split_folder(Path(name), split)
    listing = list_images(str(root))
    for note in listing.notes():
        logger.warning("%s: %s", root, note)
    if not listing.files:
        what = f"no image files ({', '.join(sorted(IMAGE_SUFFIXES))})"
        raise UserError(f"{root}: {'no class folders in it, and ' if not _sub_folders(root) else ''}{what}")
    files = sorted(listing.files, key=lambda path: path.split("/"))
    beside = [path for path in files if "/" not in path]
    found = _sub_folders(root)
    if not need_labels and (beside or not found):
        if found:
            lie = "images lie in no sub-folder"
            logger.warning("%s: %d %s (%s): no image has a label", root, len(beside), lie, few(beside))
        return FileImages(name, split, unlabeled(len(files)), (), str(root), files)
    if not found:
        raise UserError(f"{root}: no class folders in it, its {len(beside)} images have no labels")
    if beside:
        logger.warning("%s: %d images lie in no class folder, left out: %s", root, len(beside), few(beside))
    if classes is not None and (unknown := sorted(set(found) - set(classes))):
        known = few(classes, 20)
        raise UserError(f"{root}: class {text_of(unknown[0])!r} is not among the classes of train ({known})")
    order = list(classes) if classes is not None else found
    files, labels = _by_class([path for path in files if "/" in path], order, root)
    return FileImages(name, split, labels, order, str(root), files)


def _by_class(files: list[str], classes: list[str], root: Path) -> tuple[list[str], np.ndarray]:
    """Files sorted by the number of their class, and these numbers."""
    number = {each: label for label, each in enumerate(classes)}
    labels = np.array([number[path.partition("/")[0]] for path in files], np.int64)
    if empty := sorted(set(classes) - {classes[label] for label in np.unique(labels)}):
        these = f"class {empty[0]!r} has" if len(empty) == 1 else f"{len(empty)} classes have"
        logger.warning("%s: %s no images%s", root, these, f": {few(empty)}" if len(empty) > 1 else "")
    by_class = np.argsort(labels, kind="stable")
    return [files[i] for i in by_class], labels[by_class]


def _sub_folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _split_folder(root: Path, split: str) -> Path:
    """The sub-folder of a split; the folder itself if it has no split folders."""
    names = _sub_folders(root)
    if any(n in ("train", *EVALUATION_SPLITS) for n in names):
        return root / choose_split(str(root), split, names)
    if split in EVALUATION_SPLITS:
        raise NoSuchSplit(f"{root}: no split {split!r}; expected sub-folders train/ and val/ (or test/)")
    return root
