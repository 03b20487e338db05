"""Measurements on several augmented views of the same images: cosines and augmentation thickness."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.spectrum import mean_product


class Cosines(NamedTuple):
    """Mean cosines of `view_cosines`."""

    same_image: float
    different_image: float


def view_cosines(views: Tensor) -> Cosines:
    """Mean cosine over all pairs of views of one image, and over all pairs of views of two images; exact.

    Args: views: (V, N, d) features.
    Raises: ValueError unless V >= 2 and N >= 2.
    """
    _check(views, images=2)
    unit = F.normalize(views.double(), dim=-1)
    v, n, _ = unit.shape
    per_image = unit.sum(0).square().sum(-1).sum()  # all ordered pairs within an image, each view with itself too
    own = unit.square().sum()  # v n, less the zero vectors
    return Cosines(
        ((per_image - own) / (n * v * (v - 1))).item(),
        mean_product(unit.sum(0)) / v**2,
    )


class Thickness(NamedTuple):
    """Result of `augmentation_thickness`: per class, in the order of `classes`."""

    classes: Tensor  # (C,) the labels
    separability: Tensor  # (C,) 1 - d^2; at most about 1, negative where the prediction does worse than none
    sensitivity: Tensor  # (C,) not negative
    rank: int  # directions kept by the whitening


def augmentation_thickness(views: Tensor, y: Tensor, *, threshold: float = 1e-3, seed: int = 0) -> Thickness:
    """How augmentations and classes share the directions of a representation (lambda-JEPA, Appendix E).

    With m the image centres and N images of V views:
    A = sum (x - m)(x - m)^T / (N (V - 1)) within images,  B = Cov(m) - A / V between them, without the centres' noise,
    R whitens B on its eigenvalues above `threshold` of the top one,  Theta = R A R^T,
    targets t_c = (1[c] - p_c) / sqrt(p_c (1 - p_c)),  a_c the linear prediction of t_c from the whitened centres:
    separability 1 - d^2 with d^2 = E (t_c - a_c^T R m)^2, sensitivity a_c^T Theta (I + Theta)^-1 a_c.

    A, B and a_c come from one half of the images, d^2 from the other (stratified halves), where it can exceed 1; there
    too the centres' noise is subtracted. So separability does not rise with the number of directions as such.

    Args:
        views: (V, N, d) features, V >= 2 views of each image (the paper uses 8).
        y: labels (N,).
        threshold: of the kept eigenvalues, relative to the largest.
        seed: of the split in halves.
    Returns: classes that have at least two images, with their values (float64).
    Raises: ValueError on shapes that do not fit, with fewer than two such classes, or if B has no positive eigenvalue.
    """
    _check(views, images=4)
    if y.shape != views.shape[1:2]:
        raise ValueError(f"labels must be ({views.shape[1]},), got {tuple(y.shape)}")
    fit, held = _halves(y, seed)
    classes = y[held].unique()
    if len(classes) < 2:
        raise UserError(f"thickness needs two classes of two images or more, got {len(classes)}")
    mean = views[:, fit].double().mean((0, 1))
    within, between, centres = _scatter(views[:, fit], mean)
    values, axes = torch.linalg.eigh(between)
    kept = values > threshold * values[-1].clamp_min(0)
    if values[-1] <= 0 or not kept.any():
        raise UserError("images do not differ beyond their views: nothing to whiten")
    whiten = axes[:, kept] / values[kept].sqrt()  # R^T, (d, r)
    theta = whiten.T @ within @ whiten

    members = (y[:, None] == classes).double()
    share = members[fit].mean(0)
    targets = (members - share) / (share * (1 - share)).sqrt()
    a = (centres @ whiten).T @ targets[fit] / len(fit)  # (r, C); whitened, so the covariance is the regression
    held_within, _, held_centres = _scatter(views[:, held], mean)
    error = (targets[held] - held_centres @ whiten @ a).square().mean(0)
    noise = whiten.T @ held_within @ whiten / len(views)
    error = error - (a * (noise @ a)).sum(0)
    identity = torch.eye(len(theta), dtype=theta.dtype)
    sensitivity = (a * (theta @ torch.linalg.solve(identity + theta, a))).sum(0)
    return Thickness(classes, 1 - error, sensitivity, int(kept.sum()))


def _scatter(views: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, B (d, d) and the centres less `mean` (N, d)."""
    x = views.double()
    v, n, _ = x.shape
    centres = x.mean(0)
    spread = (x - centres).flatten(0, 1)
    within = spread.T @ spread / (n * (v - 1))
    shifted = centres - centres.mean(0)
    return within, shifted.T @ shifted / (n - 1) - within / v, centres - mean


def _halves(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Two disjoint halves of the images, class by class; images of a class of one are left out."""
    generator = torch.Generator().manual_seed(seed)
    first, second = [], []
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        if len(members) > 1:
            members = members[torch.randperm(len(members), generator=generator)]
            first.append(members[: len(members) // 2])
            second.append(members[len(members) // 2 :])
    empty = torch.empty(0, dtype=torch.long)
    return torch.cat([*first, empty]), torch.cat([*second, empty])


def _check(views: Tensor, *, images: int) -> None:
    if views.ndim != 3 or len(views) < 2 or views.shape[1] < images:
        raise ValueError(f"views must be (V, N, d) with V >= 2 and N >= {images}, got {tuple(views.shape)}")
