"""Images by timm's data set names, plus the embedded `digits`; random access, one class order everywhere.

| name | what it is |
|---|---|
| `digits` | the 1,797 handwritten digits inside scikit-learn, at 32x32 (train 1,438 / test 359, stratified, fixed) |
| `torch/NAME` | torchvision data sets that timm knows (`torch/cifar10`, `torch/cifar100`, ...) |
| `hfds/ID_OR_PATH` | Hugging Face data set: a Hub id, or a local folder of parquet files |
| `wds/PATH` | a local folder of WebDataset tar shards |
| a folder | one sub-folder per class, below `train/` and `val/` (or `validation/`, `test/`); or images without labels |

timm's own readers put a neighbor in place of an unreadable image, and drop empty class folders so that later labels
shift. Here an unreadable image raises `UnreadableImage` with its name, and train's class list is that of every split.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aotadmm_timm.errors import UserError

from .decode import Decoding
from .digits import digits
from .folders import folder
from .hugging_face import hugging_face
from .library import torchvision
from .listing import few
from .samples import Images
from .shards import shards

logger = logging.getLogger(__name__)


def load_images(
    name: str,
    split: str,
    *,
    root: str | Path | None = None,
    download: bool = False,
    input_key: str | None = None,
    target_key: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    labels: bool = True,
    max_pixels: int | None = None,
    sample_range: tuple[float, float] | None = None,
) -> Images:
    """Open a split of a data set (names above).

    Args:
        split: "train" or "test"; for "test" a split called validation, valid or val serves too, if there is no test.
        root: folder of torchvision data sets, or cache of Hugging Face ones.
        download: let torchvision download what is missing.
        input_key, target_key: columns of a Hugging Face data set; inferred if there is one candidate.
        num_samples: use so many images only, drawn from all by `seed`.
        classes: the class list of train, when another split is opened; an unknown class is then an error.
        labels: whether labels are needed. If so, images that have none among others that have are left out (said
            aloud), and a data set without any is refused. If not, every image is there: a label is -1 where there is
            none, `has_labels` says whether all have one, and a split without any is not passed over for another.
        max_pixels, sample_range: how files are decoded, see `decode.Decoding`.
    Raises: UserError naming the data set and what is wrong with it; NoSuchSplit, one of them,
        if there is no such split.
    """
    if num_samples is not None and num_samples < 1:
        raise UserError(f"num_samples must be positive, got {num_samples}")
    images = _open(name, split, root, download, input_key, target_key, classes, labels)
    images.decoding = Decoding(max_pixels, sample_range)
    if classes is not None and tuple(classes) != images.classes:
        unknown = sorted(set(images.classes) - set(classes))
        raise UserError(
            f"{name}: the classes of split {split!r} are not those of train"
            + (f": unknown {few(unknown, 5)}" if unknown else " (other order or number)")
        )
    if not len(images):
        raise UserError(f"{name}: no images in split {split!r}")
    lacking = int((images.labels < 0).sum())
    if labels and lacking:
        raise UserError(f"{name}: the images of split {split!r} have no labels, which are needed here")
    if 0 < lacking < len(images):
        logger.warning("%s: %d of %d images have no label", name, lacking, len(images))
    return images if num_samples is None else _sample(images, num_samples, seed)


def _open(
    name: str,
    split: str,
    root: str | Path | None,
    download: bool,
    input_key: str | None,
    target_key: str | None,
    classes: Sequence[str] | None,
    labels: bool,
) -> Images:
    """The data set of the kind that `name` says."""
    kind, slash, rest = name.partition("/")
    for key, flag in ((input_key, "--input-key"), (target_key, "--target-key")):
        if key is not None and not (slash and kind == "hfds"):
            raise UserError(f"{name}: {flag} {key} names a column, which only hfds/ data sets have")
    if name == "digits":
        return digits(split)
    if slash and kind == "torch":
        return torchvision(name, split, root=root, download=download)
    if slash and kind == "hfds":
        return hugging_face(
            name, rest, split, root=root, input_key=input_key, target_key=target_key, need_labels=labels
        )
    if slash and kind == "wds":
        return shards(name, rest, split, classes=classes, need_labels=labels)
    if slash and kind in ("hfids", "tfds"):
        raise UserError(f"{name}: streamed data sets have no random access; use hfds/, wds/ or a folder")
    if os.path.isdir(name):
        return folder(name, split, classes=classes, need_labels=labels)
    if os.sep in name or name.startswith("."):
        raise UserError(f"data set folder {name!r} does not exist")
    raise UserError(
        f"unknown data set {name!r}: expected digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder that exists"
    )


def _sample(images: Images, count: int, seed: int) -> Images:
    """`count` images, drawn without replacement, in the data set's order: data sets are often sorted by class."""
    chosen = np.sort(np.random.default_rng([seed, len(images)]).permutation(len(images))[:count])
    part = images.subset(chosen)
    seen, all_of_them = len(np.unique(part.labels)), len(np.unique(images.labels))
    if seen < all_of_them:
        logger.warning(
            "%s: the %d images drawn have %d of its %d classes; a larger --num-samples has more",
            images.name, len(part), seen, all_of_them,
        )  # fmt: skip
    return part
