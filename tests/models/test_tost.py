"""ToST against numbers of the published code, its names, and what it takes and refuses."""

import argparse
from pathlib import Path

import pytest
import timm
import torch
from models.weights import fill, images, published_tost
from safetensors.torch import load_file
from timm.layers import set_fused_attn
from torch import Tensor

from aotadmm_timm.models import layer_states
from aotadmm_timm.models.tost import native_names

REFERENCE = load_file(Path(__file__).parent / "data" / "official_tost.safetensors")
OFFICIAL = {key.removeprefix("state."): t for key, t in REFERENCE.items() if key.startswith("state.")}
SIZE = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 7}


def load(**source: object) -> torch.nn.Module:
    overlay = {"num_classes": 7, **source}
    return timm.create_model("test_tost", pretrained=True, pretrained_cfg_overlay=overlay, **SIZE).eval()


@pytest.mark.parametrize("fused", [True, False])
def test_published_numbers(fused: bool) -> None:
    """Pooled features, logits, and gradients of the sum of squared logits, to 1e-5 of the largest entry."""
    set_fused_attn(fused)
    try:
        model = load(state_dict=OFFICIAL)
    finally:
        set_fused_attn(True)
    x = REFERENCE["input"].clone().requires_grad_()
    features = model.forward_features(x)[:, 0]
    logits = model(x)
    logits.square().sum().backward()
    attn = model.blocks[0].attn
    got = {
        "features": features,
        "logits": logits,
        "input_grad": x.grad,
        "qkv_grad": attn.qkv.weight.grad,
        "temp_grad": attn.temperature.grad.unsqueeze(1),
    }
    for key, value in got.items():
        want = REFERENCE[key]
        assert (value - want).abs().max() <= 1e-5 * want.abs().max(), key


def test_a_checkpoint_of_the_published_training(tmp_path: Path) -> None:
    """DeiT's form: weights beside the optimizer's state, the epoch and the command line's arguments, pickled."""
    content = {
        "model": OFFICIAL,
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 399,
        "args": argparse.Namespace(model="tost_cab_tiny_12_p16", drop_path=0.0),
    }
    torch.save(content, tmp_path / "checkpoint.pth")
    model = load(file=str(tmp_path / "checkpoint.pth"))
    torch.testing.assert_close(model(REFERENCE["input"]), REFERENCE["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("patch", [8, 16])
@pytest.mark.parametrize(
    ("size", "width", "depth", "heads", "scale"),
    [
        ("tiny_12", 192, 12, 4, 1.0),
        ("small_12", 384, 12, 8, 1.0),
        ("small_24", 384, 24, 8, 1e-5),
        ("medium_24", 512, 24, 8, 1e-5),
        ("large_24", 768, 24, 16, 1e-5),
    ],
)
def test_published_architectures(size: str, width: int, depth: int, heads: int, scale: float, patch: int) -> None:
    """Every tensor of a published file has its place, checked without the weights' memory."""
    model = timm.create_model(f"tost_{size}_patch{patch}_224", device="meta")
    with torch.device("meta"):
        published = {
            key: torch.empty(t.shape)
            for key, t in published_tost(patch=patch, width=width, depth=depth, heads=heads, classes=1000).items()
        }
    native = native_names(published, model)
    assert {key: t.shape for key, t in native.items()} == {key: t.shape for key, t in model.state_dict().items()}
    assert model.patch_embed.img_size == (224, 224)
    assert model.init_values == model.blocks[-1].init_values == scale
    assert all(block.tokens_norm for block in model.cls_attn_blocks)
    assert model.norm.eps == model.blocks[0].norm1.eps == 1e-6


def test_names_that_have_no_place_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.attn\.other"):
        load(state_dict={**OFFICIAL, "blocks.0.attn.other": torch.zeros(2)})
    overlay = {"num_classes": 7, "state_dict": OFFICIAL}
    with pytest.raises(ValueError, match=r"temperature is \(4,\) in the checkpoint, \(2,\) in the model"):
        timm.create_model("test_tost", pretrained=True, pretrained_cfg_overlay=overlay, **{**SIZE, "num_heads": 2})


def test_the_branches_start_at_their_scale() -> None:
    """Also after the meta device, where nothing was set."""
    model = timm.create_model("test_tost", init_values=1e-5, device="meta")
    model.to_empty(device="cpu").init_weights()
    scales = [p for key, p in model.named_parameters() if "gamma" in key]
    assert len(scales) == 2 * (3 + 2)
    assert all((p == 1e-5).all() for p in scales)
    assert all((block.attn.temperature == 1).all() for block in model.blocks)
    assert 0.01 < model.cls_token.std() < 0.03


def test_class_token_joins_in_the_readout() -> None:
    torch.manual_seed(0)
    model, x = timm.create_model("test_tost").eval(), images(2, 3, 32, 32)
    states = layer_states(model, x)
    assert [tuple(s.shape for s in state) for state in states] == [((2, 16, 48),)] * 4
    assert torch.equal(model.forward_features(x), model.norm(model.readout(states[-1])))
    first, second = model.readout(states[-1])[:, 0]  # the same for all images before class attention
    assert (first - second).abs().max() > 0.01


def test_positions_are_relative_to_the_image() -> None:
    """Row and column as a share of the image's: a larger grid has the same corners, and nothing is resampled."""
    model = fill(timm.create_model("test_tost")).eval()
    small, large = model.pos_encoder(1, 4, 4)[0], model.pos_encoder(1, 8, 8)[0]
    torch.testing.assert_close(large[:, 7, 7], small[:, 3, 3], rtol=0, atol=1e-4)
    torch.testing.assert_close(large[:, 1::2, 1::2], small, rtol=0, atol=1e-4)
    assert (small[:, 0, 0] - small[:, 3, 3]).abs().max() > 0.1


@pytest.mark.parametrize(
    "kwargs",
    [
        {"class_token": False, "global_pool": "avg"},
        {"drop_path_rate": 0.2, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1, "patch_drop_rate": 0.3},
        {"pos_drop_rate": 0.1, "drop_rate": 0.1},
        {"global_pool": "avg", "fc_norm": True, "pool_include_prefix": True},
        {"pos_embed": "none"},
        {"pre_norm": True},
        {"mlp_ratio": 2.0, "qkv_bias": False, "act_layer": "relu", "tokens_norm": False},
        {"patch_size": 4},
        {"patch_size": 2, "img_size": (8, 12)},
        {"dynamic_img_size": True, "dynamic_img_pad": True},
    ],
    ids=lambda kwargs: "-".join(kwargs),
)
def test_arguments_of_timms_vision_transformer(kwargs: dict) -> None:
    torch.manual_seed(0)  # of two images, drop_path can drop both
    model = timm.create_model("test_tost", num_classes=4, **kwargs)
    size = (30, 32) if "dynamic_img_pad" in kwargs else model.patch_embed.img_size
    out = model(images(2, 3, *size))
    assert out.shape == (2, 4)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(block.attn.qkv.weight.grad.abs().sum() > 0 for block in model.blocks)


def test_without_class_token_there_is_no_class_attention() -> None:
    model = timm.create_model("test_tost", class_token=False, global_pool="avg").eval()
    assert not [key for key in model.state_dict() if key.startswith("cls_")]
    x = images(2, 3, 32, 32)
    assert torch.equal(model.readout(layer_states(model, x)[-1]), layer_states(model, x)[-1][0])


def test_gradient_checkpointing_covers_the_class_attention() -> None:
    """One tensor a layer is kept, one a block of class attention, and nothing of their inside."""

    def saved(checkpointing: bool) -> int:
        model = timm.create_model("test_tost")
        model.set_grad_checkpointing(checkpointing)
        seen: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            model(images(2, 3, 32, 32))
        return sum(t.numel() for t in seen if t.ndim == 3 and t.shape[-1] in (48, 192))

    assert saved(True) < saved(False) / 4


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reg_tokens": 4}, "reg_tokens=4"),
        ({"pos_embed": "learn"}, "got 'learn'"),
        ({"qk_norm": True}, "qk_norm"),
        ({"patch_size": 6}, "got 6"),
        ({"patch_size": (8, 4)}, r"got \(8, 4\)"),
        ({"embed_dim": 50, "num_heads": 5}, "got 50 and 8"),
    ],
)
def test_bad_arguments(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timm.create_model("test_tost", **kwargs)
