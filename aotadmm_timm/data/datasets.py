"""Labelled images by timm's data set names, plus the embedded `digits`; random access, one class order everywhere.

| name | what it is |
|---|---|
| `digits` | the 1,797 handwritten digits inside scikit-learn, at 32x32 (train 1,438 / test 359, stratified, fixed) |
| `torch/NAME` | torchvision data sets that timm knows (`torch/cifar10`, `torch/cifar100`, ...) |
| `hfds/ID_OR_PATH` | Hugging Face data set: a Hub id, or a local folder of parquet files |
| `wds/PATH` | a local folder of WebDataset tar shards |
| a folder | one sub-folder per class, below `train/` and `val/` (or `validation/`, `test/`) |

timm's own readers put a neighbour in place of an unreadable image, and drop empty class folders so that later labels
shift. Here an unreadable image raises `UnreadableImage` with its name, and train's class list is that of every split.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from .decode import UnreadableImage, read_image, to_rgb

logger = logging.getLogger(__name__)

EVALUATION_SPLITS = ("test", "validation", "valid", "val")


class NoSuchSplit(ValueError):
    """A data set has no such split, or none with labels. Any other fault of a split is a plain ValueError."""


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with integer labels, by index.

    Attributes:
        name, split: what was loaded.
        classes: class names; label i is classes[i].
        labels: (N,) int64.
        ids: what names image i in a message (a path, or its row number); None for row numbers.
        read: row number -> RGB image; raises UnreadableImage.
        rows: (N,) row numbers behind the indices 0 .. N-1.
    """

    name: str
    split: str
    classes: tuple[str, ...]
    labels: np.ndarray
    read: Callable[[int], Image.Image]
    rows: np.ndarray
    ids: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.read(int(self.rows[index])), int(self.labels[index])

    def id_of(self, index: int) -> str:
        row = int(self.rows[index])
        return self.ids[row] if self.ids is not None else f"{self.name} {self.split}[{row}]"

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the first image that can be read. Raises ValueError if none can."""
        for row in self.rows:
            try:
                width, height = self.read(int(row)).size
            except UnreadableImage:
                continue
            return height, width
        raise ValueError(f"{self.name}: not one of {len(self)} images can be read; the first: {self.id_of(0)}")

    def subset(self, indices: Sequence[int] | np.ndarray) -> "LabelledImages":
        indices = np.asarray(indices, dtype=np.int64)
        return replace(self, labels=self.labels[indices], rows=self.rows[indices])


def load_images(
    name: str,
    split: str,
    *,
    root: str | Path | None = None,
    download: bool = False,
    input_key: str | None = None,
    target_key: str | None = None,
    num_samples: int | None = None,
    classes: Sequence[str] | None = None,
    labels: bool = True,
) -> LabelledImages:
    """Open a split of a data set (names above).

    Args:
        split: "train" or "test"; for "test" a split called validation, valid or val serves too, if there is no test.
        root: folder of torchvision data sets, or cache of Hugging Face ones.
        download: let torchvision download what is missing.
        input_key, target_key: columns of a Hugging Face data set; inferred if there is one candidate.
        num_samples: the first n images only.
        classes: the class list of train, when another split is opened; an unknown class is then an error.
        labels: False if images without labels are welcome: their labels are -1, and a split without any is not passed
            over for another.
    Raises: ValueError or FileNotFoundError naming the data set and what is wrong with it; NoSuchSplit, a ValueError,
        if there is no such split.
    """
    from . import sources

    prefix, slash, rest = name.partition("/")
    for key, flag in ((input_key, "--input-key"), (target_key, "--target-key")):
        if key is not None and not (slash and prefix == "hfds"):
            raise ValueError(f"{name}: {flag} {key} names a column, which only hfds/ data sets have")
    if name == "digits":
        images = sources.digits(split)
    elif slash and prefix == "torch":
        images = sources.torchvision(name, split, root=root, download=download)
    elif slash and prefix == "hfds":
        images = sources.hugging_face(
            name, rest, split, root=root, input_key=input_key, target_key=target_key, need_labels=labels
        )
    elif slash and prefix == "wds":
        images = sources.shards(name, rest, split, classes=classes, need_labels=labels)
    elif slash and prefix in ("hfids", "tfds"):
        raise ValueError(f"{name}: streamed data sets have no random access; use hfds/, wds/ or a folder")
    elif os.path.isdir(name):
        images = sources.folder(name, split, classes=classes)
    elif os.sep in name or name.startswith("."):
        raise FileNotFoundError(f"data set folder {name!r} does not exist")
    else:
        raise ValueError(
            f"unknown data set {name!r}: expected digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder that exists"
        )
    if classes is not None and tuple(classes) != images.classes:
        unknown = sorted(set(images.classes) - set(classes))
        raise ValueError(
            f"{name}: the classes of split {split!r} are not those of train"
            + (f": unknown {', '.join(unknown[:5])}" if unknown else " (other order or number)")
        )
    if not len(images):
        raise ValueError(f"{name}: no images in split {split!r}")
    if num_samples is not None:
        if num_samples < 1:
            raise ValueError(f"num_samples must be positive, got {num_samples}")
        first = images.subset(np.arange(min(num_samples, len(images))))
        seen, all_of_them = len(np.unique(first.labels)), len(np.unique(images.labels))
        if seen < all_of_them:
            logger.warning(
                "%s: the first %d images have %d of its %d classes; a larger --num-samples has more",
                name, len(first), seen, all_of_them,
            )  # fmt: skip
        images = first
    return images


def if_there(open_split: Callable[[], LabelledImages]) -> LabelledImages | None:
    """What `open_split` opens, or None (said aloud) if there is no such split: a tenth of train is then held out.

    A split that is there but damaged, or of other classes, stays an error.
    """
    try:
        return open_split()
    except NoSuchSplit as err:
        logger.warning("%s; a tenth of train is held out instead", err)
        return None


def held_out_split(labels: np.ndarray, fraction: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stratified split of 0 .. N-1 into (kept, held out) indices, both sorted.

    Every class gives `fraction` of its images, rounded, but never its only one. Depends on labels and seed alone.
    """
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        held.append(rng.permutation(members)[:count])
    held_out = np.sort(np.concatenate(held)) if held else np.empty(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def hold_out(train: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """(the rest, the tenth that stands in for a missing test set), by `held_out_split`.

    Unreadable images are to be left out afterwards: which images are held out then does not depend on them.
    """
    kept, held = held_out_split(train.labels)
    return train.subset(kept), train.subset(held)


def from_files(
    name: str, split: str, paths: Sequence[Path], labels: Sequence[int], classes: Sequence[str]
) -> LabelledImages:
    """Images behind file paths."""
    return LabelledImages(
        name,
        split,
        tuple(classes),
        np.asarray(labels, np.int64),
        read=lambda row: read_image(paths[row]),
        rows=np.arange(len(paths)),
        ids=[str(p) for p in paths],
    )


def from_pictures(
    name: str, split: str, picture: Callable[[int], Image.Image], labels: Sequence[int], classes: Sequence[str]
) -> LabelledImages:
    """Images that a library already decodes; what it leaves of the colour rules is still ours."""

    def read(row: int) -> Image.Image:
        place = f"{name} {split}[{row}]"
        try:
            image = picture(row)
        except (OSError, SyntaxError, ValueError) as error:  # Pillow's for damaged files
            raise UnreadableImage(place, str(error) or type(error).__name__) from error
        return to_rgb(image, name=place)

    return LabelledImages(
        name,
        split,
        tuple(classes),
        np.asarray(labels, np.int64),
        read=read,
        rows=np.arange(len(labels)),
    )
