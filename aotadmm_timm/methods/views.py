"""What a method is fed: the augmented views of one batch of images."""

from typing import NamedTuple

from torch import Tensor


class Views(NamedTuple):
    """V views of B images as normalised floats, view first: view v of image b is `global_views[v, b]`."""

    global_views: Tensor  # (Vg, B, C, H, W)
    local_views: Tensor | None = None  # (Vl, B, C, h, w)
