"""MSSA against loops over heads and tokens, Eq. 12 with explicit bases, and the choice of kernel."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aotadmm_timm.layers.subspace_attention import MSSA, subspace_attention
from aotadmm_timm.layers.tied_attention import tied_attention


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


class _Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dtype", "tokens", "fused", "kernel"),
    [
        (torch.float32, 17, True, "tied"),
        (torch.bfloat16, 17, True, "tied"),
        (torch.float32, 65, True, "scaled_dot_product_attention"),
        (torch.bfloat16, 65, True, "softmax"),
        (torch.bfloat16, 1024, True, "scaled_dot_product_attention"),
        (torch.float32, 17, False, "softmax"),
    ],
)
def test_kernel_by_precision_and_length(
    dtype: torch.dtype, tokens: int, fused: bool, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.randn(1, 2, tokens, 16).to(dtype)
    module = sys.modules["aotadmm_timm.layers.subspace_attention"]
    with _Calls() as calls:

        def noted(*args: Any) -> Tensor:
            calls.names.append("tied")
            return tied_attention(*args)

        monkeypatch.setattr(module, "tied_attention", noted)
        out = subspace_attention(w, 0.25, 0.0, fused)
    assert next(name for name in calls.names if name in ("tied", "softmax", "scaled_dot_product_attention")) == kernel
    want = (0.25 * w.double() @ w.double().transpose(-2, -1)).softmax(-1) @ w.double()
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)


def test_a_function_transform_gets_plain_operations() -> None:
    w = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    one = torch.func.grad(lambda x: subspace_attention(x, 0.5).square().sum())
    torch.testing.assert_close(torch.vmap(one)(w), torch.stack([one(x) for x in w]))


def test_dropout_only_in_training() -> None:
    torch.manual_seed(0)
    layer = MSSA(12, 3, attn_drop=0.5)
    z = torch.randn(1, 9, 12)
    assert not torch.equal(layer(z), layer(z))
    layer.eval()
    assert torch.equal(layer(z), layer(z))


def test_explicit_form_drops_weights() -> None:
    torch.manual_seed(0)
    w = torch.randn(1, 1, 9, 4)
    assert not torch.equal(subspace_attention(w, 1.0, 0.5, False), subspace_attention(w, 1.0, 0.0, False))


def test_indivisible_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="embed_dim=48, num_heads=5"):
        MSSA(48, 5)
