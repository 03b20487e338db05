"""The fused ADMM step against the separate operations, which are tested against the paper."""

from typing import Any

import pytest
import torch
from torch import Tensor

from aotadmm_timm.layers import fused_admm
from aotadmm_timm.layers.fused_admm import fused_admm_step
from aotadmm_timm.layers.proximal import admm_step

EPS = 1e-6


def inputs(dtype: torch.dtype, tokens: int = 7, d: int = 6) -> list[Tensor]:
    """z, v, w, compressed, logits of the coefficients, threshold, gain."""
    generator = torch.Generator().manual_seed(0)
    z, v, w, compressed = torch.randn(4, 3, tokens, d, generator=generator, dtype=torch.float64).to(dtype)
    logits = torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64)
    gain = 1 + 0.3 * torch.randn(d, generator=generator, dtype=torch.float64)
    parameters = [
        t.to(torch.float32 if dtype == torch.bfloat16 else dtype) for t in (logits, torch.tensor([0.3]), gain)
    ]
    return [t.clone().requires_grad_() for t in (z, v, w, compressed, *parameters)]


def separate(z: Tensor, v: Tensor, w: Tensor, m: Tensor, logits: Tensor, tau: Tensor, gain: Tensor) -> Any:
    return admm_step(z, v, w, m, logits.softmax(0), tau, gain, eps=EPS)


def fused(z: Tensor, v: Tensor, w: Tensor, m: Tensor, logits: Tensor, tau: Tensor, gain: Tensor) -> Any:
    return fused_admm_step(z, v, w, m, logits.softmax(0), tau, gain, EPS)


def test_gradient_against_differences() -> None:
    assert torch.autograd.gradcheck(fused, inputs(torch.float64, tokens=2, d=4))


@pytest.mark.parametrize("block", [1, 30, 2**18])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_equals_the_separate_operations(
    block: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_admm, "_BLOCK", block)  # 21 tokens: one, five and all of them at a time
    given = inputs(dtype)
    exact = [t.detach().double().requires_grad_() for t in given]
    got, want = fused(*given), separate(*exact)
    weights = torch.randn(3, *want[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sum((s.double() * g).sum() for s, g in zip(got, weights, strict=True)).backward()
    sum((s * g).sum() for s, g in zip(want, weights, strict=True)).backward()
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() <= tolerance * b.norm()
    for t, e in zip(given, exact, strict=True):
        assert t.grad is not None
        assert e.grad is not None
        assert t.grad.dtype == t.dtype
        # The three logits' gradients nearly cancel; their rounding is that of the terms, which are of order one.
        scale = max(float(e.grad.norm()), 1.0)
        assert (t.grad.double() - e.grad).norm() <= 3 * tolerance * scale


def test_backward_under_autocast_is_the_same() -> None:
    grads = []
    for enabled in (False, True):
        given = inputs(torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            torch.stack(list(fused(*given))).square().sum().backward()
        grads.append([t.grad for t in given])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True) if a is not None and b is not None)


def test_at_the_threshold_the_gradient_goes_to_the_dual() -> None:
    """ReLU's convention at its kink, u = tau exactly."""
    results = []
    for step in (fused, separate):
        z, v, w, m, logits, _, gain = (t.detach().clone() for t in inputs(torch.float64, tokens=1, d=4))
        state = step(z, v, w, m, logits, torch.tensor([0.0]), gain)[0] + w
        z.requires_grad_()
        tau = state.flatten()[1:2].detach()
        out = step(z, v, w, m, logits, tau, gain)
        (out[1].sum() + 2 * out[2].sum()).backward()
        results.append(z.grad)
    torch.testing.assert_close(*results)


def test_states_in_half_precision_are_computed_in_float32() -> None:
    given = inputs(torch.bfloat16, tokens=50, d=64)
    exact = separate(*(t.detach().double() for t in given))
    for got, want in zip(fused(*given), exact, strict=True):
        assert torch.equal(got, want.to(torch.bfloat16)) or (got.double() - want).abs().max() < 2**-8 * want.abs().max()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_states_that_nobody_reads(used: tuple[int, ...]) -> None:
    """As in the last layer, whose V alone is read out."""
    grads = []
    for step in (fused, separate):
        given = inputs(torch.float64)
        states = step(*given)
        sum(states[i].square().sum() for i in used).backward()
        grads.append([t.grad for t in given if t.grad is not None])
    torch.testing.assert_close(*([g for g in part if g.abs().max() > 0] for part in grads))


def test_a_second_derivative_is_refused_and_the_separate_operations_have_it() -> None:
    """Also where the incoming gradient is constant: the second one would silently lack a term."""
    given = inputs(torch.float64)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again .*set_fused_attn"):
        torch.autograd.grad(fused(*given)[1].sum(), given[0], create_graph=True)
    (grad,) = torch.autograd.grad(separate(*given)[1].sum(), given[0], create_graph=True)
    grad.square().sum().backward()
    assert given[1].grad is not None
    assert given[1].grad.abs().sum() > 0
