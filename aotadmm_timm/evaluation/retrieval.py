"""Retrieval by cosine similarity: does the nearest image, do the nearest images, have the query's class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from aotadmm_timm.evaluation.checks import check_features

_QUERIES = 256


class Retrieval(NamedTuple):
    """Result of `retrieval`."""

    recall_at_1: float
    mean_average_precision: float
    queries: int  # images that have a partner of their class; the others are left out


def retrieval(z: Tensor, y: Tensor) -> Retrieval:
    """Every image of z queries all others, ranked by cosine.

    recall@1: share of queries whose first hit has their class. mAP: mean over queries of the mean, over the images of
    their class, of the precision at that image's rank. A query never finds itself; one without partner is left out.

    Args: z: features (N, d). y: labels (N,), any integers.
    Returns: both in [0, 1]; NaN if no class has two images. Memory: one block of 256 x N.
    Raises: ValueError on shapes that do not fit.
    """
    check_features(z, y, "the")
    z = F.normalize(z.float(), dim=1)
    ranks = torch.arange(1, max(len(z), 2), dtype=torch.float64)
    first, precision, count = 0.0, 0.0, 0
    for start in range(0, len(z), _QUERIES):
        rows = torch.arange(start, min(start + _QUERIES, len(z)))
        similarity = z[rows] @ z.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf  # itself: sorted last, then cut off
        order = similarity.argsort(dim=1, descending=True, stable=True)[:, :-1]
        hits = (y[order] == y[rows, None]).double()
        hits = hits[hits.any(1)]
        if hits.numel() == 0:
            continue
        precisions = hits.cumsum(1) / ranks * hits
        first += hits[:, 0].sum().item()
        precision += (precisions.sum(1) / hits.sum(1)).sum().item()
        count += len(hits)
    if count == 0:
        return Retrieval(float("nan"), float("nan"), 0)
    return Retrieval(first / count, precision / count, count)
