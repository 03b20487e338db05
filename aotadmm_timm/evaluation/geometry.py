"""How features lie: rank, retrieval, and what augmentations do to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from aotadmm_timm.evaluation.augmentation import augmentation_thickness, view_cosines
from aotadmm_timm.evaluation.features import evenly_spread
from aotadmm_timm.evaluation.retrieval import retrieval
from aotadmm_timm.evaluation.spectrum import rankme

_RETRIEVAL = 10_000  # images at most: each is ranked against all others
_COLUMNS = {
    "RankMe": "rankme",
    "recall@1": "recall_at_1",
    "mAP": "mean_average_precision",
    "cos same image": "same_image",
    "cos different": "different_image",
    "separability": "separability",
    "view sensitivity": "sensitivity",
}


def geometry(
    z: Tensor, y: Tensor | None, views: Tensor | None, view_y: Tensor | None, classes: Sequence[str]
) -> dict[str, Any]:
    """Named measurements of features z (N, d); those that need the labels y (N,) only where there are labels.

    Args:
        views, view_y: features (V, M, d) of augmented views of M images, and their labels (M,).
        classes: names of the labels.
    """
    row: dict[str, Any] = {"width": z.shape[1], "rankme": rankme(z)}
    if y is not None:
        chosen = evenly_spread(len(z), _RETRIEVAL)
        found = retrieval(z[chosen], y[chosen])
        row |= {
            "recall_at_1": found.recall_at_1,
            "mean_average_precision": found.mean_average_precision,
            "retrieval_queries": found.queries,
        }
    if views is not None:
        row |= {"view_images": views.shape[1], "views": len(views), **view_cosines(views)._asdict()}
        row |= _thickness(views, view_y, classes)
    return row


def _thickness(views: Tensor, y: Tensor | None, classes: Sequence[str]) -> dict[str, Any]:
    if y is None:
        return {"thickness_left_out": "not all images have labels"}
    try:
        thickness = augmentation_thickness(views, y)
    except ValueError as err:
        return {"thickness_left_out": str(err)}
    return {
        "separability": thickness.separability.mean().item(),
        "sensitivity": thickness.sensitivity.mean().item(),
        "thickness_rank": thickness.rank,
        "per_class": {
            classes[int(label)]: {"separability": separability.item(), "sensitivity": sensitivity.item()}
            for label, separability, sensitivity in zip(*thickness[:3], strict=True)
        },
    }


def geometry_rows(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """`geometry` by name as rows of text, the first one the header."""
    table = [["space", "width", *_COLUMNS]]
    for name, row in rows.items():
        values = [row.get(key) for key in _COLUMNS.values()]
        cells = ["-" if v is None else f"{v:.1f}" if i == 0 else f"{v:.3f}" for i, v in enumerate(values)]
        table.append([name, str(row["width"]), *cells])
    return table
