"""MSSA against loops over heads and tokens, and Eq. 12 with explicit bases."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.layers.subspace_attention import MSSA


@torch.no_grad()
def literal_mssa(layer: MSSA, z: Tensor, scale: float) -> Tensor:
    """One image z (N, d): head by head, token by token."""
    n, d = z.shape
    p = d // layer.num_heads
    heads = []
    for k in range(layer.num_heads):
        u_t = layer.qkv.weight[k * p : (k + 1) * p]  # U_k^T
        w = [u_t @ z[i] for i in range(n)]
        out = []
        for i in range(n):
            logits = [scale * float(w[i] @ w[j]) for j in range(n)]
            total = sum(math.exp(x) for x in logits)
            out.append(sum(math.exp(logits[j]) / total * w[j] for j in range(n)))
        heads.append(torch.stack(out))
    concatenated = torch.cat(heads, dim=1)
    if layer.proj is None:
        return concatenated @ layer.qkv.weight
    return concatenated @ layer.proj.weight.t() + layer.proj.bias


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_equals_the_literal_sum(tied: bool, scale: float | None) -> None:
    torch.manual_seed(0)
    layer = MSSA(12, 3, tied=tied, scale=scale, dtype=torch.float64)
    z = torch.randn(2, 5, 12, dtype=torch.float64)
    want = torch.stack([literal_mssa(layer, image, scale or 4**-0.5) for image in z])
    torch.testing.assert_close(layer(z), want, rtol=0, atol=1e-12)


def test_tied_and_unscaled_is_equation_12() -> None:
    torch.manual_seed(0)
    layer = MSSA(8, 2, tied=True, scale=1.0, dtype=torch.float64)
    z = torch.randn(1, 6, 8, dtype=torch.float64)
    columns = z[0].t()  # the paper's Z, (d, N)
    want = torch.zeros(8, 6, dtype=torch.float64)
    for k in range(2):
        u = layer.qkv.weight[4 * k : 4 * k + 4].t()
        want += u @ u.t() @ columns @ (columns.t() @ u @ u.t() @ columns).softmax(dim=0)
    torch.testing.assert_close(layer(z)[0].t(), want, rtol=0, atol=1e-12)


def test_parameter_counts() -> None:
    assert sum(p.numel() for p in MSSA(48, 3).parameters()) == 2 * 48**2 + 48
    assert sum(p.numel() for p in MSSA(48, 3, tied=True).parameters()) == 48**2


def test_dropout_only_in_training() -> None:
    torch.manual_seed(0)
    layer = MSSA(12, 3, attn_drop=0.5)
    z = torch.randn(1, 9, 12)
    assert not torch.equal(layer(z), layer(z))
    layer.eval()
    assert torch.equal(layer(z), layer(z))


def test_indivisible_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="embed_dim=48, num_heads=5"):
        MSSA(48, 5)
