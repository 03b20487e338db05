"""CRATE against numbers of the published code, and against its formulas for the cases those numbers leave out."""

from pathlib import Path

import pytest
import timm
import torch
from models.literal import crate, crate_alpha
from models.weights import draw, images, published_crate, published_crate_alpha
from safetensors.torch import load_file
from torch import Tensor

import aotadmm_timm

REFERENCE = load_file(Path(__file__).parent / "data" / "official_crate.safetensors")
OFFICIAL = {key.removeprefix("state_dict."): t for key, t in REFERENCE.items() if key.startswith("state_dict.")}
MEAN_POOLING = {"global_pool": "avg", "fc_norm": True, "pool_include_prefix": True}


def load(state: dict[str, Tensor], name: str = "test_crate", **kwargs: object) -> torch.nn.Module:
    classes = state["mlp_head.1.weight"].shape[0]
    overlay = {"state_dict": state, "num_classes": classes}
    kwargs = {"num_classes": classes, **kwargs}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs).eval()


def test_published_numbers() -> None:
    """Logits, tokens before the head's norm, and gradients of the sum of squared logits."""
    model = load(OFFICIAL)
    x = REFERENCE["input"].clone().requires_grad_()
    logits = model(x)
    (tokens,) = aotadmm_timm.models.layer_states(model, x)[-1]
    logits.square().sum().backward()
    gradients = {
        "logits": logits,
        "tokens": tokens,
        "input_grad": x.grad,
        "qkv_grad": model.blocks[0].attn.qkv.weight.grad,
        "dict_grad": model.blocks[-1].ista.dictionary.grad,
    }
    for key, value in gradients.items():
        torch.testing.assert_close(value, REFERENCE[key], rtol=0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


def test_literal_version_agrees_with_the_published_numbers() -> None:
    """What the other comparisons rest on."""
    want = crate(OFFICIAL, REFERENCE["input"], patch=8, heads=3)
    torch.testing.assert_close(want.float(), REFERENCE["logits"], rtol=0, atol=1e-5)


def test_mean_pooling_over_all_tokens() -> None:
    want = crate(OFFICIAL, REFERENCE["input"], patch=8, heads=3, mean_pool=True)
    torch.testing.assert_close(load(OFFICIAL, **MEAN_POOLING)(REFERENCE["input"]).double(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", [{}, MEAN_POOLING])
@pytest.mark.parametrize(("patch", "size", "channels"), [(4, 20, 3), (8, 24, 1), (4, 8, 5)])
def test_other_patch_image_and_channel_counts(patch: int, size: int, channels: int, pooling: dict) -> None:
    state = published_crate(patch=patch, width=24, depth=2, classes=4, size=size, channels=channels)
    overlay = {"state_dict": state, "num_classes": 4, "input_size": (channels, size, size)}
    model = timm.create_model(
        "test_crate",
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        num_classes=4,
        embed_dim=24,
        depth=2,
        num_heads=4,
        patch_size=patch,
        img_size=size,
        in_chans=channels,
        **pooling,
    ).eval()
    x = images(2, channels, size, size)
    want = crate(state, x, patch=patch, heads=4, mean_pool=bool(pooling))
    torch.testing.assert_close(model(x).double(), want, rtol=0, atol=1e-5)


def test_head_count_matters() -> None:
    """Both load strictly: no state dict says which is right."""
    a, b = load(OFFICIAL)(REFERENCE["input"]), load(OFFICIAL, num_heads=6)(REFERENCE["input"])
    assert (a - b).norm() / a.norm() > 0.02


def test_crate_alpha() -> None:
    state = published_crate_alpha(patch=8, width=48, depth=3, classes=7, size=32)
    x = images(2, 3, 32, 32)
    model = load(state, "test_crate_alpha")
    torch.testing.assert_close(model(x).double(), crate_alpha(state, x, heads=3), rtol=0, atol=1e-5)


def test_clipa_is_crate_alpha_in_other_words() -> None:
    """The image tower of a CLIPA file: one projection written as q, k and v, no biases, a text tower beside it."""
    state = published_crate_alpha(patch=8, width=48, depth=3, classes=7, size=32)
    state["conv1.bias"].zero_()
    state["mlp_head.1.bias"].zero_()
    clipa = {
        "visual.conv1.weight": state["conv1.weight"],
        "visual.class_embedding": state["cls_token"].flatten(),
        "visual.positional_embedding": state["pos_embedding"][0],
        "visual.ln_post.weight": state["mlp_head.0.weight"],
        "visual.ln_post.bias": state["mlp_head.0.bias"],
        "visual.proj": state["mlp_head.1.weight"].t(),
        "transformer.resblocks.0.attn.in_proj_bias": torch.zeros(3),
        "logit_scale": torch.zeros(()),
    }
    for i in range(3):
        ours, theirs = f"transformer.layers.{i}", f"visual.transformer.resblocks.{i}"
        clipa |= {
            f"{theirs}.ln_1.weight": state[f"{ours}.0.norm.weight"],
            f"{theirs}.ln_1.bias": state[f"{ours}.0.norm.bias"],
            f"{theirs}.attn.in_proj_weight": state[f"{ours}.0.fn.qkv.weight"].repeat(3, 1),
            f"{theirs}.attn.out_proj.weight": state[f"{ours}.0.fn.to_out.0.weight"],
            f"{theirs}.ln_2.weight": state[f"{ours}.1.norm.weight"],
            f"{theirs}.ln_2.bias": state[f"{ours}.1.norm.bias"],
            f"{theirs}.mlp.c_fc": state[f"{ours}.1.fn.D"],
            f"{theirs}.mlp.c_proj": state[f"{ours}.1.fn.D1"],
        }
    overlay = {"num_classes": 7, "state_dict": clipa}
    build = {"pretrained": True, "num_classes": 7, "pretrained_cfg_overlay": overlay}
    x = images(2, 3, 32, 32)
    model = timm.create_model("test_crate_alpha", **build).eval()
    torch.testing.assert_close(model(x).double(), crate_alpha(state, x, heads=3), rtol=0, atol=1e-5)
    clipa["visual.transformer.resblocks.1.attn.in_proj_weight"][0] += 1
    with pytest.raises(ValueError, match="queries, keys and values differ"):
        timm.create_model("test_crate_alpha", **build)


def test_demo_file_with_a_head_of_two_layers() -> None:
    """Patch 8 and a classifier `head` on top of `mlp_head`: the product of both."""
    state = published_crate(patch=8, width=48, depth=3, classes=48, size=32)
    outer = draw({"head.weight": (9, 48), "head.bias": (9,)}, seed=3)
    model = timm.create_model(
        "test_crate",
        pretrained=True,
        num_classes=9,
        pretrained_cfg_overlay={"state_dict": {"model": {**state, **outer}}, "num_classes": 9},
    ).eval()
    x = images(2, 3, 32, 32)
    want = crate(state, x, patch=8, heads=3) @ outer["head.weight"].double().t() + outer["head.bias"]
    torch.testing.assert_close(model(x).double(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "patch"),
    [
        ("crate_tiny_patch16_224", 384, 12, 6, 16),
        ("crate_small_patch16_224", 576, 12, 12, 16),
        ("crate_base_patch16_224", 768, 12, 12, 16),
        ("crate_large_patch16_224", 1024, 24, 16, 16),
        ("crate_base_patch8_224", 768, 12, 6, 8),
        ("crate_alpha_base_patch16_224", 768, 12, 12, 16),
        ("crate_alpha_large_patch14_224", 1024, 24, 16, 14),
        ("crate_alpha_huge_patch14_224", 1280, 32, 16, 14),
    ],
)
def test_published_architectures(name: str, width: int, depth: int, heads: int, patch: int) -> None:
    """Every tensor of the published file has its place, checked without the weights' memory."""
    model = timm.create_model(name, device="meta")
    assert (model.blocks[0].attn.num_heads, model.patch_embed.img_size) == (heads, (224, 224))
    assert model.global_pool == "token"
    make = published_crate_alpha if "alpha" in name else published_crate
    with torch.device("meta"):
        small = make(patch=1, width=2, depth=depth, classes=2, size=1)
    from aotadmm_timm.models.official import translate

    assert translate(small).keys() == model.state_dict().keys()
    assert model.embed_dim == width
    assert model.patch_embed.patch_size == (patch, patch)


def test_wide_dictionary_is_an_argument() -> None:
    model = timm.create_model("test_crate", dictionary_ratio=2, ista_skip=True, norm_eps=1e-6)
    assert model.blocks[0].ista.decoder.shape == (48, 96)
    assert (model.blocks[0].norm1.eps, model.norm.eps) == (1e-6, 1e-6)
