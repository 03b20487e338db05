"""What a method is fed, and the backbone's features of it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from aotadmm_timm.errors import UserError


class Views(NamedTuple):
    """V views of B images as normalised floats, view first: view v of image b is `global_views[v, b]`."""

    global_views: Tensor  # (Vg, B, C, H, W)
    local_views: Tensor | None = None  # (Vl, B, C, h, w)


def backbone_features(backbone: nn.Module, views: Views) -> Tensor:
    """Pooled features (Vg + Vl, B, d), global views first; one pass of the backbone for each resolution."""
    groups = [group for group in views if group is not None]
    return torch.cat([backbone(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in groups])


def feature_width(backbone: nn.Module) -> int:
    """Width of the pooled features of a timm model.

    Raises: UserError if the model still has a classifier, or no `num_features`.
    """
    width = getattr(backbone, "num_features", None)
    if not isinstance(width, int):
        raise UserError(f"a backbone is a timm model with `num_features`; {type(backbone).__name__} has none")
    if getattr(backbone, "num_classes", 0):
        raise UserError(f"the backbone must be created with num_classes=0, got {backbone.num_classes}")
    return width
