"""Retrieval against a literal ranking."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.evaluation import retrieval


def literal(z: Tensor, y: list[int]) -> tuple[float, float, int]:
    recalls, precisions = [], []
    for query in range(len(z)):
        others = [i for i in range(len(z)) if i != query]
        others.sort(key=lambda i: -float(z[query] @ z[i] / z[query].norm() / z[i].norm()))
        relevant = [y[i] == y[query] for i in others]
        if not any(relevant):
            continue
        recalls.append(relevant[0])
        found = [sum(relevant[: r + 1]) / (r + 1) for r in range(len(others)) if relevant[r]]
        precisions.append(sum(found) / len(found))
    return sum(recalls) / len(recalls), sum(precisions) / len(precisions), len(recalls)


def test_equals_the_literal_ranking_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([4, 4, 4, -1, -1, -1, -1, 9, 9, 77])  # 77 has no partner
    z = torch.randn(10, 5, generator=generator) + 0.7 * y[:, None].sign()
    expected = literal(z.double(), y.tolist())
    assert expected[2] == 9
    assert retrieval(z, y) == pytest.approx(expected)
    monkeypatch.setitem(retrieval.__globals__, "_QUERIES", 3)
    assert retrieval(z, y) == pytest.approx(expected)


def test_perfect_and_hopeless_and_alone() -> None:
    z = torch.eye(4).repeat_interleave(2, 0)
    assert retrieval(z, torch.arange(4).repeat_interleave(2)) == (1.0, 1.0, 8)
    worst = retrieval(torch.tensor([[1.0, 0], [1, 0.1], [-1, 0], [-1, 0.1]]), torch.tensor([0, 1, 0, 1]))
    assert worst.recall_at_1 == 0.0
    assert math.isnan(retrieval(torch.eye(3), torch.arange(3)).mean_average_precision)
    assert retrieval(torch.eye(1), torch.zeros(1)).queries == 0
    with pytest.raises(ValueError, match=r"labels must be \(3,\), got \(2,\)"):
        retrieval(torch.eye(3), torch.zeros(2))
