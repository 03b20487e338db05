"""MLP-free ViT against its formula and timm's own ViT, and what of a ViT checkpoint it takes."""

import pytest
import timm
import torch
from models.weights import fill, images
from timm.models.vision_transformer import VisionTransformer

import aotadmm_timm  # noqa: F401

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}


def plain_vit(**kwargs: object) -> VisionTransformer:
    return fill(VisionTransformer(**{**SIZE, **kwargs})).eval()  # type: ignore[arg-type]


def mlpfree(state: dict, **kwargs: object) -> VisionTransformer:
    overlay = {"state_dict": state, "num_classes": 5, "input_size": (3, 32, 32)}
    return timm.create_model(
        "test_vit_mlpfree", pretrained=True, pretrained_cfg_overlay=overlay, **{"num_classes": 5, **kwargs}
    ).eval()


def test_starts_from_a_vit_and_computes_the_formula() -> None:
    vit, x = plain_vit(), images(2, 3, 32, 32)
    model = mlpfree(vit.state_dict())
    z = vit._pos_embed(vit.patch_embed(x))
    for block in vit.blocks:
        z = z + block.attn(block.norm1(z))
        z = z + block.norm2(z).relu()
    torch.testing.assert_close(model(x), vit.head(vit.norm(z)[:, 0]), rtol=0, atol=1e-6)
    assert not [key for key in model.state_dict() if ".mlp." in key]


def test_trained_at_another_size() -> None:
    vit = plain_vit(img_size=64, patch_size=16)
    assert mlpfree(vit.state_dict()).patch_embed.proj.weight.shape == (48, 3, 8, 8)
    assert mlpfree(vit.state_dict(), img_size=48).pos_embed.shape == (1, 37, 48)


def test_grey_input() -> None:
    vit, x = plain_vit(), images(2, 1, 32, 32)
    want = mlpfree(vit.state_dict())(x.expand(-1, 3, -1, -1))
    torch.testing.assert_close(mlpfree(vit.state_dict(), in_chans=1)(x), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"qkv_bias": False}, r"blocks\.0\.attn\.qkv\.bias \(144,\) is missing"),
        ({"init_values": 1e-4}, r"blocks\.0\.ls1\.gamma \(48,\) has no place"),
        ({"embed_dim": 24}, r"is \(.*24\) in the checkpoint, \(.*48\) in the model"),
        ({"reg_tokens": 1}, r"reg_token \(1, 1, 48\) has no place"),
    ],
)
def test_only_mlps_are_dropped(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mlpfree(plain_vit(**kwargs).state_dict())


def test_registered_sizes_take_timm_vits() -> None:
    for size in ("tiny", "small", "base"):
        vit = timm.create_model(f"vit_{size}_patch16_224", device="meta")
        ours = timm.create_model(f"vit_{size}_mlpfree_patch16_224", device="meta")
        shapes = {key: t.shape for key, t in vit.state_dict().items() if ".mlp." not in key}
        assert shapes == {key: t.shape for key, t in ours.state_dict().items()}


def test_fix_init_is_refused() -> None:
    with pytest.raises(ValueError, match="fix_init"):
        timm.create_model("test_vit_mlpfree", fix_init=True)
