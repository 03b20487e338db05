"""Invariance terms against loops and closed forms."""

from itertools import combinations

import pytest
import torch

from aotadmm_timm.losses import invariance, pairwise_invariance


def test_invariance_by_loops() -> None:
    torch.manual_seed(0)
    z, target = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    terms = [(z[v, n, d] - target[n, d]) ** 2 for v in range(3) for n in range(4) for d in range(5)]
    assert torch.allclose(invariance(z, target), torch.stack(terms).mean())


def test_pairwise_invariance_is_the_mean_over_pairs() -> None:
    torch.manual_seed(0)
    z = torch.randn(5, 4, 3, dtype=torch.float64)
    pairs = [(z[v] - z[w]).square().mean() for v, w in combinations(range(5), 2)]
    assert torch.allclose(pairwise_invariance(z), torch.stack(pairs).mean())
    shifted = z + torch.randn(4, 3)  # what views share does not count
    assert torch.allclose(pairwise_invariance(shifted), pairwise_invariance(z))
    assert float(pairwise_invariance(z[:1].expand(5, 4, 3))) == pytest.approx(0, abs=1e-15)
    with pytest.raises(ValueError, match=r"at least 2 views, got embeddings of shape \(1, 4, 3\)"):
        pairwise_invariance(z[:1])


def test_gradients() -> None:
    torch.manual_seed(0)
    z = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pairwise_invariance, (z,))
    assert torch.autograd.gradcheck(lambda z: invariance(z, z[:2].mean(0)), (z,))  # the target has a gradient too


def test_precision_is_at_least_float32() -> None:
    torch.manual_seed(0)
    z = torch.randn(4, 8, 6, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        value = pairwise_invariance(z)
    assert value.dtype == torch.float32
    assert torch.equal(value, pairwise_invariance(z.float()))
