"""AoT-ADMM against Algorithm 1 written out number by number, its options, and its state at initialization."""

import math

import pytest
import timm
import torch
from models.literal import aot_admm
from models.weights import fill, images

import aotadmm_timm  # noqa: F401
from aotadmm_timm.models import layer_states


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_algorithm_1(pool: str) -> None:
    model = fill(timm.create_model("test_aot_admm", tau=0.2, global_pool=pool, dtype=torch.float64)).eval()
    x = images(1, 3, 32, 32).double()
    want = aot_admm(model.state_dict(), x, patch=8, heads=3, tau=0.2)
    got = layer_states(model, x)
    assert len(got) == len(want) == 4
    for layer, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        for name, a, b in zip("ZVW", ours, theirs, strict=True):
            torch.testing.assert_close(a[0], b, rtol=0, atol=1e-10, msg=lambda m, n=name, k=layer: f"{n}{k}: {m}")
    v = want[-1][1]
    pooled = v[0] if pool == "token" else v[1:].mean(0)
    torch.testing.assert_close(model(x)[0], pooled, rtol=0, atol=1e-10)
    torch.testing.assert_close(model.forward_features(x)[0], v, rtol=0, atol=1e-10)


def test_initial_coefficients_are_the_admm_step() -> None:
    model = timm.create_model("test_aot_admm", eta_gamma=0.5, eta_rho=0.1, tau=0.3, learn_threshold=True)
    for block in model.blocks:
        torch.testing.assert_close(block.coefficients(), torch.tensor([0.4, 0.5, 0.1]))
        torch.testing.assert_close(block.threshold(), torch.tensor([0.3]))
        assert torch.equal(block.gain, torch.ones(48))


def test_coefficients_stay_positive_with_unit_sum() -> None:
    block = fill(timm.create_model("test_aot_admm")).blocks[0]
    coefficients = block.coefficients()
    assert (coefficients > 0).all()
    assert math.isclose(coefficients.sum().item(), 1.0, abs_tol=1e-6)


def test_learned_threshold_is_used_and_trained() -> None:
    model = timm.create_model("test_aot_admm", tau=0.3, learn_threshold=True)
    fixed = timm.create_model("test_aot_admm", tau=0.3)
    fixed.load_state_dict(model.state_dict(), strict=False)
    x = images(2, 3, 32, 32)
    torch.testing.assert_close(model(x), fixed(x))
    model(x).sum().backward()
    assert all(block.log_tau.grad.abs() > 0 for block in model.blocks)
    with torch.no_grad():
        model.blocks[-1].log_tau.fill_(math.log(1e4))
    assert not model(x).any()
    assert "blocks.0.log_tau" in model.no_weight_decay()


def test_tied_projection_has_no_second_matrix() -> None:
    tied = timm.create_model("test_aot_admm", tied_proj=True, attn_scale=1.0, attn_norm=False)
    assert not [key for key in tied.state_dict() if "proj" in key and "patch_embed" not in key]
    assert tied.blocks[0].attn.scale == 1.0
    assert tied(images(2, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(("rescale", "z_rms", "w_rms"), [("zw", True, True), ("z", True, False), ("", False, False)])
def test_rescaling(rescale: str, z_rms: bool, w_rms: bool) -> None:
    model = timm.create_model("test_aot_admm", rescale=rescale).eval()
    z, _, w = layer_states(model, images(2, 3, 32, 32))[-1]
    for state, rescaled in ((z, z_rms), (w, w_rms)):
        assert torch.allclose(state.square().mean(-1), torch.ones(2, 17), atol=1e-3) == rescaled
    assert ("blocks.0.gain" in model.state_dict()) == z_rms


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"eta_gamma": 0.0}, "got 0.0 and 0.2"),
        ({"eta_gamma": 0.9}, "got 0.9 and 0.2"),
        ({"tau": -0.1}, "got -0.1"),
        ({"tau": 0.0, "learn_threshold": True}, "got 0.0"),
        ({"rescale": "v"}, "got 'v'"),
        ({"mlp_ratio": 2.0}, "mlp_ratio"),
    ],
)
def test_bad_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timm.create_model("test_aot_admm", **kwargs)


def test_final_norm_is_off_unless_asked_for() -> None:
    x = images(2, 3, 32, 32)
    model = timm.create_model("test_aot_admm").eval()
    assert torch.equal(model.forward_features(x), layer_states(model, x)[-1][1])
    normed = timm.create_model("test_aot_admm", final_norm=True).eval()
    normed.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(normed.forward_features(x), normed.norm(layer_states(model, x)[-1][1]))


def test_tiny_is_alive_at_initialization() -> None:
    """No state dies or explodes over 12 layers, images stay apart, and every layer gets gradient."""
    torch.manual_seed(0)
    model = timm.create_model("aot_admm_tiny")
    x = torch.nn.functional.interpolate(images(32, 3, 6, 6), size=(32, 32), mode="bicubic")
    states = layer_states(model, x)
    for z, v, w in states[1:]:
        assert all(0.4 < s.std() < 1.1 for s in (z, v, w))
        assert 0.3 < (v > 0).float().mean() < 0.95
        assert v[:, 0].std(0).mean() > 0.2  # the class token differs between images
    model.forward_head(model.forward_features(x)).square().mean().backward()
    norms = torch.tensor([block.attn.qkv.weight.grad.norm() for block in model.blocks])
    assert norms.max() / norms.min() < 50
