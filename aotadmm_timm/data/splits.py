"""Splits by name, and the split of one that is missing."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from aotadmm_timm.errors import UserError

from .samples import Images

logger = logging.getLogger(__name__)

EVALUATION_SPLITS = ("test", "validation", "valid", "val")


class NoSuchSplit(UserError):
    """A data set has no such split, or none with labels. Any other fault of a split is a plain UserError."""


def choose_split(name: str, split: str, available: Sequence[str]) -> str:
    """`split` itself, or for an evaluation split any of its synonyms that exists."""
    candidates = (split, *EVALUATION_SPLITS) if split in EVALUATION_SPLITS else (split,)
    for candidate in candidates:
        if candidate in available:
            return candidate
    raise NoSuchSplit(f"{name}: no split {split!r}; it has {', '.join(map(str, available)) or 'none'}")


def if_there(open_split: Callable[[], Images]) -> Images | None:
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

    scikit-learn's, so that held out are `fraction` of all images (but one for each class at least), in the proportions
    of the classes. It refuses classes of one image: these are kept. Depends on labels and seed alone.
    """
    from sklearn.model_selection import train_test_split

    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[number] > 1)
    if not len(several):
        return np.arange(len(labels)), np.empty(0, np.int64)
    size = max(int((counts > 1).sum()), round(fraction * len(several)))
    _, held = train_test_split(several, test_size=size, random_state=seed, stratify=labels[several])
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)


def hold_out(train: Images) -> tuple[Images, Images]:
    """(the rest, the tenth that stands in for a missing test set), by `held_out_split`.

    Unreadable images are to be left out afterwards: which images are held out then does not depend on them.
    """
    kept, held = held_out_split(train.labels)
    return train.subset(kept), train.subset(held)
