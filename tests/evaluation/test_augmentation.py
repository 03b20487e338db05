"""Cosines and augmentation thickness against literal loops and a model with known answers."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.evaluation.augmentation import _halves, augmentation_thickness, view_cosines


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cosines_are_the_means_over_all_pairs() -> None:
    views = draw(3, 5, 4) + draw(1, 5, 4, seed=1) + 0.5
    same, different = [], []
    for v in range(3):
        for w in range(3):
            for i in range(5):
                for j in range(5):
                    cosine = torch.cosine_similarity(views[v, i], views[w, j], dim=0).item()
                    if i != j:
                        different.append(cosine)
                    elif v != w:
                        same.append(cosine)
    assert view_cosines(views) == pytest.approx((sum(same) / len(same), sum(different) / len(different)))


def literal_thickness(views: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    """The formulas of Appendix E one image, one view, one class at a time."""
    fit, held = _halves(y, 0)
    v, d = len(views), views.shape[2]

    def scatter(rows: Tensor) -> tuple[Tensor, Tensor]:
        within, between = torch.zeros(d, d).double(), torch.zeros(d, d).double()
        overall = sum(views[:, i].mean(0) for i in rows) / len(rows)
        for i in rows:
            centre = views[:, i].mean(0)
            between += torch.outer(centre - overall, centre - overall) / (len(rows) - 1)
            for k in range(v):
                within += torch.outer(views[k, i] - centre, views[k, i] - centre) / (len(rows) * (v - 1))
        return within, between - within / v

    within, between = scatter(fit)
    values, axes = torch.linalg.eigh(between)
    r = torch.stack([axes[:, j] / values[j] ** 0.5 for j in range(d) if values[j] > 1e-3 * values[-1]])
    theta = r @ within @ r.T
    mean = views[:, fit].mean((0, 1))
    separability, sensitivity = [], []
    for c in y.unique().tolist():
        p = sum(int(y[i]) == c for i in fit) / len(fit)
        target = {int(i): ((int(y[i]) == c) - p) / (p * (1 - p)) ** 0.5 for i in range(len(y))}
        a = sum(target[int(i)] * (r @ (views[:, i].mean(0) - mean)) for i in fit) / len(fit)
        errors = [(target[int(i)] - a @ r @ (views[:, i].mean(0) - mean)) ** 2 for i in held]
        noise = a @ r @ (scatter(held)[0] / v) @ r.T @ a
        separability.append(1 - (sum(errors) / len(errors) - noise).item())
        sensitivity.append((a @ theta @ torch.linalg.inv(torch.eye(len(r)) + theta) @ a).item())
    return separability, sensitivity


def test_thickness_is_the_literal_formula() -> None:
    y = torch.arange(30) % 3
    views = 0.5 * draw(4, 30, 5) + draw(3, 5, seed=1)[y] + 0.3 * draw(1, 30, 5, seed=2)
    result = augmentation_thickness(views, y)
    separability, sensitivity = literal_thickness(views, y)
    assert result.classes.tolist() == [0, 1, 2]
    assert result.separability.tolist() == pytest.approx(separability)
    assert result.sensitivity.tolist() == pytest.approx(sensitivity)
    moved = augmentation_thickness(7 * views @ torch.linalg.qr(draw(5, 5, seed=7)).Q + 3, y)  # a rigid motion and scale
    assert moved.rank == result.rank
    assert moved.separability.tolist() == pytest.approx(separability)


def test_thickness_of_a_model_with_known_answers() -> None:
    # centres: one coordinate is the class, the other is noise; views: noise on either coordinate
    n, v, size = 4000, 8, 0.5
    y = torch.arange(n) % 2
    centres = torch.stack([2.0 * y - 1, draw(n)], 1)
    on_class = augmentation_thickness(centres + size * draw(v, n, 2, seed=1) * torch.tensor([1.0, 0.01]), y)
    on_rest = augmentation_thickness(centres + size * draw(v, n, 2, seed=1) * torch.tensor([0.01, 1.0]), y)
    for result in (on_class, on_rest):
        assert result.separability.tolist() == pytest.approx([1.0, 1.0], abs=0.02)
    expected = size**2 / (1 + size**2)  # theta / (1 + theta) along the class, |a| = 1
    assert on_class.sensitivity.tolist() == pytest.approx([expected] * 2, abs=0.02)
    assert on_rest.sensitivity.tolist() == pytest.approx([0.0] * 2, abs=0.01)
    blind = augmentation_thickness(draw(v, 200, 50, seed=3) * 0.1 + draw(1, 200, 50, seed=4), torch.arange(200) % 2)
    assert blind.separability.max() < 0.2  # labels unrelated to the centres: no separability, though 50 directions


def test_a_class_of_one_image_is_left_out_and_bad_input_named() -> None:
    y = torch.tensor([0] * 6 + [5] * 6 + [9])
    result = augmentation_thickness(draw(3, 13, 4), y)
    assert result.classes.tolist() == [0, 5]
    first, second = _halves(y, 0)
    assert set(first.tolist()).isdisjoint(second.tolist())
    assert 12 not in first
    with pytest.raises(ValueError, match=r"V >= 2 and N >= 4, got \(1, 13, 4\)"):
        augmentation_thickness(draw(1, 13, 4), y)
    with pytest.raises(ValueError, match=r"labels must be \(13,\)"):
        augmentation_thickness(draw(3, 13, 4), y[:5])
    for labels, count in ((torch.arange(13), 0), (torch.zeros(13), 1)):
        with pytest.raises(ValueError, match=f"two classes of two images or more, got {count}"):
            augmentation_thickness(draw(3, 13, 4), labels)
    with pytest.raises(ValueError, match="nothing to whiten"):
        augmentation_thickness(torch.ones(3, 13, 4), y)
    with pytest.raises(ValueError, match=r"N >= 2, got \(2, 1, 3\)"):
        view_cosines(torch.ones(2, 1, 3))
