"""Data sets of the Hugging Face Hub, or local folders of parquet files as it holds them."""

import logging
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aotadmm_timm.errors import UserError

from .decode import UnreadableImage, read_image
from .listing import few
from .samples import Images, unlabeled
from .splits import EVALUATION_SPLITS, choose_split

logger = logging.getLogger(__name__)


class HuggingFaceImages(Images):
    """The encoded images of one column of `data`, a `datasets.Dataset`."""

    def __init__(
        self, name: str, split: str, labels: np.ndarray, classes: Sequence[str], data: Any, column: str
    ) -> None:
        super().__init__(name, split, labels, classes)
        self.data, self.column = data, column

    def read(self, row: int) -> Image.Image:
        item = self.data[row][self.column]
        if item is None or (item["bytes"] is None and item["path"] is None):
            raise UnreadableImage(self.row_id(row), "no image in this row")
        source = item["bytes"] if item["bytes"] is not None else item["path"]
        return read_image(source, name=self.row_id(row), decoding=self.decoding)


def hugging_face(
    name: str,
    location: str,
    split: str,
    *,
    root: str | Path | None,
    input_key: str | None,
    target_key: str | None,
    need_labels: bool = True,
) -> HuggingFaceImages:
    """A Hugging Face data set with an image column and a class column.

    An evaluation split without any label (-1 or null, as of a challenge's test) is passed over for the next synonym,
    if labels are needed.
    """
    if not location:
        raise UserError(f"{name}: which data set? hfds/ID or hfds/PATH")
    try:
        import datasets
    except ImportError:
        raise UserError(f"{name}: needs datasets: pip install 'aotadmm_timm[train]'") from None

    location = os.path.expanduser(location)
    if location.startswith((".", "/")) and not os.path.isdir(location):
        raise UserError(f"{name}: no folder {location!r}")
    datasets.disable_progress_bars()
    try:
        splits = datasets.load_dataset(location, cache_dir=str(root) if root else None)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as err:
        raise UserError(f"{name}: cannot be loaded: {err}") from None
    without_labels: list[str] = []
    while True:
        chosen = choose_split(name, split, [each for each in splits if each not in without_labels])
        data, image_key, label_key, labels = _labels_of(name, splits[chosen], input_key, target_key, need_labels)
        if not need_labels or split not in EVALUATION_SPLITS or not len(labels) or (labels != -1).any():
            break
        logger.warning("%s: split %r has no labels, another one is taken for it", name, chosen)
        without_labels.append(chosen)
    classes = _class_names(name, chosen, data, label_key, labels)
    raw = data.cast_column(image_key, datasets.Image(decode=False))
    images = HuggingFaceImages(name, chosen, labels, classes, raw, image_key)
    lacking = labels == -1
    if not need_labels or not lacking.any() or lacking.all():
        return images
    rows = few(f"row {row}" for row in np.flatnonzero(lacking))
    logger.warning("%s: %d images of split %r have no label, left out: %s", name, lacking.sum(), chosen, rows)
    return images.subset(np.flatnonzero(~lacking))


def _class_names(name: str, split: str, data: Any, label_key: str | None, labels: np.ndarray) -> Sequence[str]:
    """Names of the classes, by number where the column has none; none without a label."""
    names = getattr(data.features[label_key], "names", None) if label_key else None
    if names is None:
        names = [str(c) for c in range(int(labels.max(initial=-1)) + 1)]
    if len(outside := labels[(labels < -1) | (labels >= len(names))]):
        last = len(names) - 1
        raise UserError(f"{name}: split {split!r} has the label {outside[0]} in {label_key!r}, classes are 0..{last}")
    return names if (labels >= 0).any() else ()


def _labels_of(
    name: str, data: Any, input_key: str | None, target_key: str | None, need_labels: bool
) -> tuple[Any, str, str | None, np.ndarray]:
    """A split, its image column, its label column if any, and the labels as int64, -1 for none."""
    import datasets

    features = data.features
    image_key = _column(
        name, "input_key", input_key, features, [k for k, f in features.items() if isinstance(f, datasets.Image)]
    )
    of_classes = [k for k, f in features.items() if isinstance(f, datasets.ClassLabel)]
    if not need_labels and target_key is None and not of_classes:
        columns = ", ".join(features)
        logger.warning("%s: no class column among %s: no image has a label (--target-key names one)", name, columns)
        return data, image_key, None, unlabeled(len(data))
    label_key = _column(name, "target_key", target_key, features, of_classes, preferred=("label", "fine_label"))
    try:
        labels = np.asarray([-1 if label is None else operator.index(label) for label in data[label_key]], np.int64)
    except (TypeError, ValueError):
        raise UserError(f"{name}: column {label_key!r} (--target-key) does not hold class numbers") from None
    return data, image_key, label_key, labels


def _column(
    name: str, option: str, given: str | None, features: Any, candidates: list[str], preferred: Sequence[str] = ()
) -> str:
    """The column that was asked for, else the only candidate, else (said aloud) a conventional name among several."""
    flag = "--" + option.replace("_", "-")
    if given is not None:
        if given not in features:
            raise UserError(f"{name}: no column {given!r} ({flag}); it has {', '.join(features)}")
        return given
    if len(candidates) == 1:
        return candidates[0]
    for key in preferred:
        if key in candidates:
            others = ", ".join(c for c in candidates if c != key)
            logger.warning("%s: labels are column %r; %s chooses another (%s)", name, key, flag, others)
            return key
    what = f"several columns fit ({', '.join(candidates)})" if candidates else f"none of {', '.join(features)} fits"
    raise UserError(f"{name}: {what}; name one with {flag}")
