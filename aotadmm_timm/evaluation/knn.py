"""Weighted k-nearest-neighbour classification by cosine similarity."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from aotadmm_timm.evaluation.checks import check_train_test

_QUERIES, _BANK = 1024, 8192  # one block of similarities: 32 MiB in float32


def knn_accuracy(
    train_z: Tensor, train_y: Tensor, test_z: Tensor, test_y: Tensor, *, k: int = 20, temperature: float = 0.07
) -> float:
    """Share of test rows whose class wins the vote of the k nearest train rows, weights exp(cosine / temperature).

    Args:
        train_z, test_z: features (N, d), (M, d).
        train_y, test_y: labels (N,), (M,); any integers. A test class that train lacks counts as wrong.
        k: neighbours; more than N means all N.
        temperature: > 0.
    Returns: accuracy in [0, 1]. Equal votes go to the smallest label.
    Raises: ValueError on shapes that do not fit, k < 1 or temperature <= 0.
    """
    check_train_test(train_z, train_y, test_z, test_y)
    similarity, index = nearest_neighbors(train_z, test_z, k=k)
    return vote_accuracy(similarity, train_y[index], test_y, temperature=temperature)


def nearest_neighbors(bank: Tensor, queries: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """The min(k, N) rows of bank (N, d) of largest cosine to each row of queries (M, d), best first.

    Returns: cosines and row numbers, both (M, min(k, N)). Memory: one block of similarities, never N x M.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    bank, queries = F.normalize(bank.float(), dim=1), F.normalize(queries.float(), dim=1)
    k = min(k, len(bank))
    cosines, rows = [], []
    for block in queries.split(_QUERIES):
        best, where = block.new_empty(len(block), 0), block.new_empty((len(block), 0), dtype=torch.long)
        for start in range(0, len(bank), _BANK):
            similarity = block @ bank[start : start + _BANK].T
            values, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
            best, where = torch.cat([best, values], 1), torch.cat([where, index + start], 1)
            best, order = best.topk(min(k, best.shape[1]), dim=1)
            where = where.gather(1, order)
        cosines.append(best)
        rows.append(where)
    return torch.cat(cosines), torch.cat(rows)


def vote_accuracy(similarity: Tensor, neighbor_y: Tensor, test_y: Tensor, *, temperature: float = 0.07) -> float:
    """Accuracy of the weighted vote of neighbours with cosines and labels (M, k): `knn_accuracy` after the search."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    classes, position = neighbor_y.unique(return_inverse=True)
    # the largest cosine of a row leaves the vote as a common factor, so that a small temperature cannot overflow
    weights = ((similarity - similarity.amax(1, keepdim=True)) / temperature).double().exp()
    votes = weights.new_zeros(len(weights), len(classes)).scatter_add_(1, position, weights)
    return (classes[votes.argmax(1)] == test_y).double().mean().item()
