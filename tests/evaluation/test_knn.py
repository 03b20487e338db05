"""kNN against a literal loop in float64."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.evaluation import knn, knn_accuracy


def literal_knn(train_z: Tensor, train_y: Tensor, test_z: Tensor, test_y: Tensor, k: int, temperature: float) -> float:
    right = 0
    for query, label in zip(test_z.double(), test_y.tolist(), strict=True):
        pairs = []
        for row, row_label in zip(train_z.double(), train_y.tolist(), strict=True):
            pairs.append((float(query @ row / (query.norm() * row.norm())), row_label))
        votes: dict[int, float] = {}
        for similarity, row_label in sorted(pairs, reverse=True)[:k]:
            votes[row_label] = votes.get(row_label, 0.0) + math.exp(similarity / temperature)
        right += max(votes, key=lambda c: votes[c]) == label
    return right / len(test_z)


def clusters(count: int, classes: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    centres = torch.randn(classes, 6, generator=torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    return centres[y] + spread * torch.randn(count, 6, generator=generator), y


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (20, 0.5), (1000, 0.07), (30, 10.0)])
def test_equals_the_literal_loop(monkeypatch: pytest.MonkeyPatch, k: int, temperature: float) -> None:
    train_z, train_y = clusters(57, 4, 1.5, 0)
    test_z, test_y = clusters(31, 4, 1.5, 1)
    expected = literal_knn(train_z, train_y, test_z, test_y, k, temperature)
    assert 0.3 < expected < 1
    assert knn_accuracy(train_z, train_y, test_z, test_y, k=k, temperature=temperature) == pytest.approx(expected)
    monkeypatch.setattr(knn, "_QUERIES", 7)  # many blocks, the last ones shorter than k
    monkeypatch.setattr(knn, "_BANK", 10)
    assert knn_accuracy(train_z, train_y, test_z, test_y, k=k, temperature=temperature) == pytest.approx(expected)


def test_labels_need_not_be_zero_to_c() -> None:
    train_z, train_y = clusters(60, 3, 0.1, 0)
    test_z, test_y = clusters(20, 3, 0.1, 1)
    names = torch.tensor([-7, 10**12, 3])
    assert knn_accuracy(train_z, names[train_y], test_z, names[test_y]) == 1.0
    test_y = names[test_y].clone()
    test_y[:5] = 99  # a class train does not have
    assert knn_accuracy(train_z, names[train_y], test_z, test_y) == 0.75


def test_one_class_and_tiny_temperature() -> None:
    z = torch.randn(4, 3)
    assert knn_accuracy(z, torch.full((4,), 2), z, torch.tensor([2, 2, 0, 2])) == 0.75
    assert knn_accuracy(z, torch.arange(4), z, torch.arange(4), k=4, temperature=1e-4) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"train_z": torch.zeros(0, 6), "train_y": torch.zeros(0)}, r"N >= 1, got \(0, 6\)"),
        ({"test_z": torch.randn(20, 5)}, r"\(60, 6\).*\(20, 5\)"),
        ({"test_y": torch.zeros(19)}, r"test labels must be \(20,\), got \(19,\)"),
        ({"train_z": torch.full((60, 6), torch.inf)}, "NaN or infinite"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    train_z, train_y = clusters(60, 3, 0.1, 0)
    test_z, test_y = clusters(20, 3, 0.1, 1)
    arguments = {"train_z": train_z, "train_y": train_y, "test_z": test_z, "test_y": test_y} | change
    with pytest.raises(ValueError, match=message):
        knn_accuracy(**arguments)
