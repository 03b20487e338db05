"""Token statistics self-attention against the published operator, against loops, and its hand-written backward."""

from pathlib import Path

import pytest
import torch
from models import literal
from safetensors.torch import load_file
from torch import Tensor

from aotadmm_timm.layers import fused_token_statistics
from aotadmm_timm.layers.dispatch import token_statistics
from aotadmm_timm.layers.statistics_attention import TSSA
from aotadmm_timm.layers.token_statistics import membership
from aotadmm_timm.theory import variational_compression_rate

OFFICIAL = load_file(Path(__file__).parents[1] / "models" / "data" / "official_tost.safetensors")


def inputs(dtype: torch.dtype = torch.float64, tokens: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, tokens, 2, 4, generator=generator, dtype=torch.float64).to(dtype)
    temperature = torch.tensor([0.5, 3.0], dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
    return w.requires_grad_(), temperature.requires_grad_()


def test_published_operator() -> None:
    prefix = "state.blocks.0.attn."
    attn = TSSA(32, 4, qkv_bias=True)
    attn.load_state_dict(
        {
            "qkv.weight": OFFICIAL[f"{prefix}qkv.weight"],
            "qkv.bias": OFFICIAL[f"{prefix}qkv.bias"],
            "temperature": OFFICIAL[f"{prefix}temp"].flatten(),
            "proj.weight": OFFICIAL[f"{prefix}to_out.0.weight"],
            "proj.bias": OFFICIAL[f"{prefix}to_out.0.bias"],
        }
    )
    for attn.fused_attn in (True, False):
        torch.testing.assert_close(attn(OFFICIAL["tssa_input"]), OFFICIAL["tssa_output"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_formula_number_by_number(fused: bool) -> None:
    w, temperature = inputs()
    w, temperature = w.detach(), temperature.detach()
    got = token_statistics(w, temperature, fused=fused)
    for image, out in zip(w, got, strict=True):
        want = literal.token_statistics(image.flatten(1), torch.eye(8, dtype=torch.float64), temperature, heads=2)
        torch.testing.assert_close(out.flatten(1), want, rtol=0, atol=1e-8)  # 1e-8 in the count of tokens


@pytest.mark.parametrize("fused", [True, False])
def test_it_is_the_gradient_of_the_variational_rate_for_a_fixed_membership(fused: bool) -> None:
    w, temperature = inputs(tokens=9)
    pi = membership(w, temperature).detach()
    rate = variational_compression_rate(w, pi)
    (gradient,) = torch.autograd.grad(9 * rate.sum(), w)
    torch.testing.assert_close(token_statistics(w, temperature, fused=fused), -gradient, rtol=0, atol=1e-8)
    with torch.no_grad():  # so a small step lowers it, for every image
        assert (variational_compression_rate(w + 0.05 * token_statistics(w, temperature), pi) < rate).all()


def test_variational_rate_bounds_the_rate_of_each_heads_tokens() -> None:
    w, _ = inputs(tokens=9)
    pi = torch.eye(2, dtype=torch.float64)[torch.arange(9) % 2].expand(3, 9, 2)  # every token belongs to one head
    exact = torch.zeros(3, dtype=torch.float64)
    for k in range(2):
        mine = w[:, torch.arange(9) % 2 == k, k]
        count = mine.shape[1]
        exact += count / 9 * torch.logdet(torch.eye(4) + mine.mT @ mine / count) / 2
    bound = variational_compression_rate(w, pi)
    assert (bound > exact).all()
    single = variational_compression_rate(w[..., :1], pi)  # one axis per head: nothing is bounded away
    want = sum(len(m := w[:, torch.arange(9) % 2 == k, k, 0].T) * m.square().mean(0).log1p() / 18 for k in range(2))
    torch.testing.assert_close(single, want)
    with pytest.raises(ValueError, match=r"\(3, 9, 2, 4\), \(3, 9, 3\)"):
        variational_compression_rate(w, torch.ones(3, 9, 3))


def test_membership_sums_to_one_over_the_heads() -> None:
    w, temperature = inputs()
    pi = membership(w, temperature)
    torch.testing.assert_close(pi.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    torch.testing.assert_close(membership(w, 0 * temperature), torch.full((3, 5, 2), 0.5, dtype=torch.float64))


def test_gradient_against_differences() -> None:
    w, temperature = inputs(tokens=3)
    assert torch.autograd.gradcheck(token_statistics, (w, temperature))


@pytest.mark.parametrize("block", [1, 80, 2**17])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_fused_equals_the_separate_operations(
    block: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_token_statistics, "_BLOCK", block)  # three images: one, two and all of them at a time
    given = inputs(dtype)
    exact = [t.detach().double().requires_grad_() for t in given]
    got, want = token_statistics(*given), token_statistics(*exact, fused=False)
    assert type(got.grad_fn).__name__ == "_FusedTokenStatisticsBackward"
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got.backward(grad.to(dtype))
    want.backward(grad)
    assert got.dtype == dtype
    assert (got.double() - want).norm() <= tolerance * want.norm()
    for t, e in zip(given, exact, strict=True):
        assert t.grad is not None
        assert e.grad is not None
        assert t.grad.dtype == t.dtype
        assert (t.grad.double() - e.grad).norm() <= 3 * tolerance * e.grad.norm()


@pytest.mark.parametrize("fused", [True, False])
def test_statistics_do_not_depend_on_autocast(fused: bool) -> None:
    grads = []
    for enabled in (False, True):
        w, temperature = inputs(torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            token_statistics(w, temperature, fused=fused).square().sum().backward()
        grads.append(w.grad)
    assert torch.equal(*grads)  # type: ignore[arg-type]


@pytest.mark.parametrize("fused", [True, False])
def test_an_axis_without_energy(fused: bool) -> None:
    """All tokens zero on one axis, and in one image: no division by zero, forward or backward."""
    w, temperature = inputs(torch.float32)
    with torch.no_grad():
        w[0, :, 1, 2] = 0
        w[1] = 0
    out = token_statistics(w, temperature, fused=fused)
    out.square().sum().backward()
    assert not out[1].any()
    assert not out[0, :, 1, 2].any()
    assert w.grad is not None
    assert w.grad.isfinite().all()
    assert temperature.grad is not None
    assert temperature.grad.isfinite().all()


def test_dropout_drops_axes_of_a_head_and_not_in_eval() -> None:
    torch.manual_seed(0)
    attn = TSSA(64, 2, attn_drop=0.5, proj_bias=False)
    torch.nn.init.eye_(attn.proj.weight)
    x = torch.randn(2, 5, 64)
    out = attn(x)
    dropped = (out == 0).all(1)
    assert torch.equal(dropped, (out == 0).any(1))  # for all tokens of an image together
    assert 0.2 < dropped.float().mean() < 0.8
    whole = attn.eval()(x)
    torch.testing.assert_close(out, torch.where(dropped.unsqueeze(1), 0.0, 2 * whole))


def test_no_images() -> None:
    w = torch.empty(0, 5, 2, 4, requires_grad=True)
    out = token_statistics(w, torch.ones(2))
    out.sum().backward()
    assert out.shape == w.shape


def test_a_second_derivative_is_refused_and_the_separate_operations_have_it() -> None:
    w, temperature = inputs()
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again .*set_fused_attn"):
        torch.autograd.grad(token_statistics(w, temperature).sum(), w, create_graph=True)
    plain = lambda x: token_statistics(x, temperature.detach(), fused=False)  # noqa: E731
    assert torch.autograd.gradgradcheck(plain, w[:1, :3])


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="embed_dim=10, num_heads=4"):
        TSSA(10, 4)
