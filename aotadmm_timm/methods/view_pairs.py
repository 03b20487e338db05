"""Pairs of views, and the mean of a loss over them."""

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor


def mean_over_pairs(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor) -> Tensor:
    """Mean of loss(z_i, z_j) over pairs of different views, i < j; z (V, B, D)."""
    return torch.stack([loss(z[i], z[j]) for i, j in combinations(range(len(z)), 2)]).mean()


def mean_over_other_views(loss: Callable[[Tensor, Tensor], Tensor], student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of loss(student_v, teacher_g) over all v != g; student (V, B, D), teacher (G, B, D), the first G views."""
    pairs = [(v, g) for g in range(len(teacher)) for v in range(len(student)) if v != g]
    return torch.stack([loss(student[v], teacher[g]) for v, g in pairs]).mean()
