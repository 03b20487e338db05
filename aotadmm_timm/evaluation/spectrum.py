"""Spectrum and angles of a set of features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aotadmm_timm.evaluation.checks import check_features


def singular_values(z: Tensor) -> Tensor:
    """Singular values of the uncentred features z (N, d), largest first, float64 (min(N, d),).

    From the eigenvalues of the smaller Gram matrix, which is faster than their decomposition; below about 1e-8 of the
    largest they are rounding.
    """
    check_features(z, None, "the")
    z = z.double()
    gram = z.mT @ z if z.shape[0] >= z.shape[1] else z @ z.mT
    return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)


def rankme(z: Tensor) -> float:
    """RankMe (Garrido et al., arXiv:2210.02885): smooth rank of the uncentred features z (N, d).

    exp(-sum_i p_i log p_i),  p_i = s_i / sum_j s_j + 1e-7,  s the singular values of z

    Lies between about 1 and min(N, d), and grows with N: compare values of one N only, and print it beside them.
    All-zero features give 1. Raises ValueError unless z is (N, d) and finite.
    """
    s = singular_values(z)
    p = s / s.sum().clamp_min(torch.finfo(s.dtype).tiny) + 1e-7
    return (-(p * p.log()).sum()).exp().item()


def different_image_cosine(z: Tensor) -> float:
    """Mean cosine over all pairs of different rows of z (N, d), exact: near 1 where the images look all alike.

    Non-negative features have a high one by construction. One row has no pair: nan. Raises ValueError unless z is
    (N, d) and finite.
    """
    check_features(z, None, "the")
    return mean_product(torch.nn.functional.normalize(z.double(), dim=-1)) if len(z) > 1 else math.nan


def mean_product(x: Tensor) -> float:
    """Mean inner product over all pairs of different rows of x (N, d), N >= 2; exact, in O(N d)."""
    n = len(x)
    return ((x.sum(0).square().sum() - x.square().sum()) / (n * (n - 1))).item()
