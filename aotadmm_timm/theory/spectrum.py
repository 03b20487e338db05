"""Effective rank of a spectrum."""

import torch
from torch import Tensor


def effective_rank(values: Tensor) -> Tensor:
    """exp(entropy of the values over their sum), (..., d) -> (...): d if all are equal, 1 if one is alone.

    Values below zero, the roundings of an eigenvalue solver, count as zero.
    """
    values = values.clamp_min(0)
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()
