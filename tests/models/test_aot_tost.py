"""AoT and AoT-ADMM with token statistics: their layers number by number, and where they start."""

import pytest
import timm
import torch
from models.literal import aot_admm, layer_norm, token_statistics
from models.weights import fill, images

import aotadmm_timm  # noqa: F401
from aotadmm_timm.models import layer_states


def test_an_aot_layer() -> None:
    model = fill(timm.create_model("test_aot_tost", dtype=torch.float64)).eval()
    states = layer_states(model, images(1, 3, 32, 32).double())
    for (z,), (after,), block in zip(states, states[1:], model.blocks, strict=False):
        x = layer_norm(z[0].detach(), block.norm.weight, block.norm.bias, 1e-5)
        w = token_statistics(x.detach(), block.attn.qkv.weight.detach(), block.attn.temperature.detach(), heads=3)
        want = z[0] + w @ block.attn.proj.weight.T + block.attn.proj.bias
        torch.testing.assert_close(after[0], want, rtol=0, atol=1e-7)  # 1e-8 in the count of tokens


def test_algorithm_1_with_token_statistics() -> None:
    model = fill(timm.create_model("test_aot_admm_tost", tau=0.2, dtype=torch.float64)).eval()
    x = images(1, 3, 32, 32).double()
    want = aot_admm(model.state_dict(), x, patch=8, heads=3, tau=0.2)
    got = layer_states(model, x)
    for layer, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        for name, a, b in zip("ZVW", ours, theirs, strict=True):
            torch.testing.assert_close(a[0], b, rtol=0, atol=1e-7, msg=lambda m, n=name, k=layer: f"{n}{k}: {m}")


def test_z_keeps_what_the_statistics_do_not_take() -> None:
    """a : b : c = 1 - eta rho : eta gamma : eta rho, with unit sum."""
    model = timm.create_model("test_aot_admm_tost", eta_gamma=0.5, eta_rho=0.1)
    for block in model.blocks:
        a, b, c = block.coefficients().tolist()
        assert a + b + c == pytest.approx(1)
        assert (a / c, b / c) == pytest.approx((9, 5))


def test_they_differ_from_aot_and_aot_admm_in_the_operator_alone() -> None:
    for name, plain in (("aot_tost_tiny", "aot_tiny"), ("aot_admm_tost_tiny", "aot_admm_tiny")):
        ours, theirs = (timm.create_model(n, device="meta") for n in (name, plain))
        extra = {f"blocks.{i}.attn.temperature": (6,) for i in range(12)}
        assert {k: tuple(t.shape) for k, t in ours.state_dict().items()} == extra | {
            k: tuple(t.shape) for k, t in theirs.state_dict().items()
        }
        assert ours.global_pool == theirs.global_pool == "avg"


def test_arguments_of_subspace_attention_are_refused() -> None:
    for kwargs in ({"tied_proj": True}, {"attn_scale": 1.0}):
        with pytest.raises(ValueError, match="no tied_proj and no attn_scale"):
            timm.create_model("test_aot_admm_tost", **kwargs)


def test_tiny_is_alive_at_initialization() -> None:
    """No state dies or explodes over 12 layers, images stay apart, and every layer gets gradient."""
    torch.manual_seed(0)
    model = timm.create_model("aot_admm_tost_tiny")
    x = torch.nn.functional.interpolate(images(32, 3, 6, 6), size=(32, 32), mode="bicubic")
    states = layer_states(model, x)
    for z, v, w in states[1:]:
        assert all(0.4 < s.std() < 1.1 for s in (z, v, w))
        assert 0.3 < (v > 0).float().mean() < 0.95
    model.forward_head(model.forward_features(x)).square().mean().backward()
    norms = torch.tensor([block.attn.qkv.weight.grad.norm() for block in model.blocks])
    assert norms.max() / norms.min() < 50
