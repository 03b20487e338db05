"""The data set that is always there: scikit-learn's handwritten digits."""

import numpy as np
from PIL import Image

from aotadmm_timm.errors import UserError

from .memory import PixelImages
from .splits import choose_split

_SIDE = 32


def digits(split: str) -> PixelImages:
    """The 1,797 digits of 8x8 pixels, enlarged to 32x32; a fifth of each class is test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("data set 'digits' needs scikit-learn: pip install 'aotadmm_timm[train]'") from None
    choose_split("digits", split, ("train", "test"))
    bunch = load_digits()
    rng = np.random.default_rng(0)
    members = [rng.permutation(np.flatnonzero(bunch.target == digit)) for digit in range(10)]
    test = np.sort(np.concatenate([rows[: round(len(rows) / 5)] for rows in members]))
    rows = test if split == "test" else np.setdiff1d(np.arange(len(bunch.target)), test)
    small = np.round(bunch.images[rows] * (255 / 16)).astype(np.uint8)
    large = [Image.fromarray(x).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR) for x in small]
    pixels = np.repeat(np.stack([np.asarray(x) for x in large])[:, None], 3, axis=1)
    return PixelImages("digits", split, bunch.target[rows], [str(d) for d in range(10)], pixels)
