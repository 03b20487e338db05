"""The hand-written backward of tied attention."""

import pytest
import torch

from aotadmm_timm.layers.tied_attention import tied_attention


def test_gradient_against_differences() -> None:
    w = torch.randn(2, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tied_attention(x, 0.7), w)


@pytest.mark.parametrize("tokens", [1, 5, 17])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_value_and_gradient_equal_the_formula(tokens: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    # As MSSA makes it: heads are strided parts of a row, the gradient comes back the same way.
    rows = torch.randn(3, tokens, 12).to(dtype).requires_grad_()
    grad = torch.randn(3, 2, tokens, 6).to(dtype)

    exact = rows.detach().double().requires_grad_()
    w = exact.unflatten(-1, (2, 6)).transpose(1, 2)
    want = (0.4 * w @ w.mT).softmax(-1) @ w
    want.backward(grad.double())
    got = tied_attention(rows.unflatten(-1, (2, 6)).transpose(1, 2), 0.4)
    got.backward(grad)
    assert got.dtype == dtype
    assert (got.double() - want).norm() <= tolerance * want.norm()
    assert rows.grad is not None
    assert exact.grad is not None
    assert (rows.grad.double() - exact.grad).norm() <= tolerance * exact.grad.norm()


def test_precision_is_that_of_its_input_under_autocast() -> None:
    grads = []
    for enabled in (False, True):
        w = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = tied_attention(w, 0.5)
            out.square().sum().backward()  # inside: autograd then runs under autocast, too
        assert out.dtype == torch.float32
        grads.append(w.grad)
    assert torch.equal(*grads)  # type: ignore[arg-type]


def test_large_logits_stay_finite() -> None:
    w = torch.tensor([[[[200.0], [-200.0], [0.0]]]], requires_grad=True)
    out = tied_attention(w, 1.0)
    out.sum().backward()
    torch.testing.assert_close(out[0, 0, :2, 0], torch.tensor([200.0, -200.0]))
    assert w.grad is not None
    assert w.grad.isfinite().all()


def test_a_second_derivative_is_refused() -> None:
    """Also where the incoming gradient is constant: the second one would silently lack a term."""
    w = torch.randn(1, 1, 3, 2, requires_grad=True)
    for loss in (tied_attention(w, 1.0).square().sum(), tied_attention(w, 1.0).sum()):
        with pytest.raises(RuntimeError, match=r"cannot be differentiated again .*set_fused_attn"):
            torch.autograd.grad(loss, w, create_graph=True)
