"""The filter: wrappers in any order, resampling, channels, and refusals that name what does not fit."""

from pathlib import Path

import pytest
import timm
import torch
from models.weights import fill, images, published_crate
from torch import Tensor, nn

import aotadmm_timm  # noqa: F401
from aotadmm_timm.errors import UserError
from aotadmm_timm.models.checkpoint import unwrap_state_dict

X = images(2, 3, 32, 32)


def source(name: str = "test_aot_admm", **kwargs: object) -> nn.Module:
    return fill(timm.create_model(name, **kwargs)).eval()


def load(state: dict, name: str = "test_aot_admm", *, overlay: dict | None = None, **kwargs: object) -> nn.Module:
    overlay = {"state_dict": state, **(overlay or {})}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **kwargs).eval()


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + key: tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "backbone.", "module._orig_mod.backbone.", "backbone._orig_mod.module.", "model."],
)
def test_wrappers(prefix: str) -> None:
    model = source()
    state = prefixed(model.state_dict(), prefix)
    assert torch.equal(load(state)(X), model(X))
    for wrapper in ("state_dict", "model", "model_state_dict"):
        assert torch.equal(load({"epoch": 3, wrapper: state})(X), model(X))


def test_nested_wrappers_and_compiled_blocks() -> None:
    model = source()
    state = {key.replace("blocks.1.", "blocks.1._orig_mod."): t for key, t in model.state_dict().items()}
    assert torch.equal(load({"state_dict": {"model": prefixed(state, "module.")}})(X), model(X))


def test_only_the_backbone_of_a_training_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    model = source()
    state = {**prefixed(model.state_dict(), "backbone."), "projector.0.weight": torch.zeros(3, 3)}
    with caplog.at_level("INFO"):
        assert torch.equal(load(state)(X), model(X))
    assert "without projector.0.weight" in caplog.text


def test_a_prefix_of_some_names_only_is_refused() -> None:
    """The head would be lost in silence."""
    state = source(num_classes=5).state_dict()
    head = {key: state.pop(key) for key in ("head.weight", "head.bias")}
    message = r"only some names .* start with 'model\.', head\.weight, head\.bias not"
    for wrapped in ({**prefixed(state, "model."), **head}, {"state_dict": {**head, **prefixed(state, "model.")}}):
        with pytest.raises(UserError, match=message):
            load(wrapped, num_classes=5)
    with pytest.raises(UserError, match=r"start with 'module\.', teacher\.0 not"):
        unwrap_state_dict({"module.a": torch.zeros(1), "teacher.0": torch.zeros(1)})


def test_parameters_beside_a_wrapper_are_refused() -> None:
    state = source(num_classes=5).state_dict()
    with pytest.raises(UserError, match=r"both in 'model' and beside it \(head\.weight\)"):
        unwrap_state_dict({"model": state, "head.weight": state["head.weight"]})
    generator = torch.get_rng_state()  # a tensor, but no parameter
    assert unwrap_state_dict({"model": state, "rng": generator}).keys() == state.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state": 5}, r"no tensors in state \(int\)"),
        ({"state": {0: {}}, "param_groups": []}, r"no tensors in state \(dict\), param_groups \(list\)"),
        ({"model": {"epoch": 1}}, r"no tensors in epoch \(int\)"),
        ({}, "no tensors in it"),
        (5, "no state dict but int"),
    ],
)
def test_what_is_no_state_dict_is_named(content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        unwrap_state_dict(content)


def test_official_file_as_it_is(tmp_path: Path) -> None:
    """`state_dict` around `module.` prefixes, in a file, at the published size."""
    state = published_crate(patch=16, width=576, depth=12, classes=1000, size=224)
    torch.save({"epoch": 1, "state_dict": prefixed(state, "module.")}, tmp_path / "crate_small.pth")
    file = {"file": str(tmp_path / "crate_small.pth")}
    model = timm.create_model("crate_small_patch16_224", pretrained=True, pretrained_cfg_overlay=file)
    assert torch.equal(model.blocks[11].ista.dictionary, state["transformer.layers.11.1.fn.weight"])
    assert torch.equal(model.head.weight, state["mlp_head.1.weight"])
    fewer = timm.create_model("crate_small_patch16_224", pretrained=True, num_classes=7, pretrained_cfg_overlay=file)
    assert fewer.head.weight.shape == (7, 576)
    assert torch.equal(fewer.norm.weight, state["mlp_head.0.weight"])


@pytest.mark.parametrize("name", ["test_aot_admm", "test_crate", "test_aot", "test_crate_alpha", "test_vit_mlpfree"])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"embed_dim": 24}, r"is \(.*48\) in the checkpoint, \(.*24\) in the model"),
        ({"depth": 4}, r"blocks\.3\.\S+ \(\S+ is missing from the checkpoint"),
        ({"depth": 2}, r"blocks\.2\.\S+ \(\S+ has no place in the model"),
        ({"class_token": False, "global_pool": "avg"}, r"cls_token \(1, 1, 48\) has no place"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(source(name).state_dict(), name, **kwargs)


def test_unrelated_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"conv1\.weight \(64, 3, 7, 7\) has no place"):
        load({"conv1.weight": torch.zeros(64, 3, 7, 7)})


def test_classifier() -> None:
    model = source(num_classes=5)
    state = model.state_dict()
    assert torch.equal(load(state)(X), model.forward_head(model.forward_features(X), pre_logits=True))
    same = load(state, num_classes=5, overlay={"num_classes": 5})
    assert torch.equal(same(X), model(X))
    assert load(state, num_classes=3, overlay={"num_classes": 5})(X).shape == (2, 3)
    with pytest.raises(ValueError, match=r"head\.weight is \(5, 48\) in the checkpoint, \(3, 48\)"):
        load(state, num_classes=3, overlay={"num_classes": 3})


@pytest.mark.parametrize("name", ["test_aot_admm", "test_crate", "test_crate_alpha", "test_vit_mlpfree"])
def test_other_image_size_resamples_positions(name: str) -> None:
    """Positions that are a linear ramp stay one."""
    model = source(name)
    ramp = torch.arange(4.0)
    with torch.no_grad():
        model.pos_embed[0, 1:] = (10 * ramp[:, None] + ramp).view(16, 1)
    grid = load(model.state_dict(), name, img_size=(64, 48)).pos_embed[0, 1:].view(8, 6, 48)[..., 0]
    assert ((grid[1:] - grid[:-1]) > 0).all()
    assert ((grid[:, 1:] - grid[:, :-1]) > 0).all()
    assert (grid[1:] - grid[:-1]).mean() > (grid[:, 1:] - grid[:, :-1]).mean() * 5


def test_square_positions_are_found_whatever_the_cfg_says() -> None:
    model = source(img_size=48)
    assert torch.equal(load(model.state_dict(), img_size=48).pos_embed, model.pos_embed)


def test_rectangular_positions_need_the_image_size() -> None:
    model = source(img_size=(64, 16))  # 8 x 2 positions: as many as the 4 x 4 of the cfg
    right = load(model.state_dict(), img_size=(64, 16), overlay={"input_size": (3, 64, 16)})
    assert torch.equal(right.pos_embed, model.pos_embed)
    model = source(img_size=(64, 24))
    with pytest.raises(ValueError, match=r"24 patch positions: neither the 4x4 grid of a 32x32 image nor a square"):
        load(model.state_dict(), img_size=(64, 24))


def test_rectangular_positions_are_never_read_as_square_ones(tmp_path: Path) -> None:
    model = source(img_size=(64, 16))  # 16 positions
    torch.save(model.state_dict(), tmp_path / "own.pth")
    file = {"file": str(tmp_path / "own.pth")}
    with pytest.raises(ValueError, match=r"a 4x4 grid, or 8x2 as in the model\? Name the image size by .*input_size"):
        timm.create_model("test_aot_admm", pretrained=True, img_size=(64, 16), pretrained_cfg_overlay=file)
    own = {**file, "input_size": (3, 64, 16)}
    right = timm.create_model("test_aot_admm", pretrained=True, img_size=(64, 16), pretrained_cfg_overlay=own)
    assert torch.equal(right.pos_embed, model.pos_embed)
    square = load(source().state_dict(), img_size=(64, 16), pretrained_model_args={"img_size": 32})
    assert square.pos_embed.shape == model.pos_embed.shape


def test_channels_are_never_read_as_pixels(tmp_path: Path) -> None:
    model = source("test_crate", patch_size=4, in_chans=12)  # 192 inputs: also 8 x 8 pixels of 3 channels
    torch.save(model.state_dict(), tmp_path / "own.pth")
    build = {"patch_size": 4, "in_chans": 12, "pretrained": True}
    file = {"file": str(tmp_path / "own.pth")}
    with pytest.raises(
        ValueError, match=r"8x8 pixels and 3 channels, or of 4x4 and 12\? Name the channels .*input_size"
    ):
        timm.create_model("test_crate", pretrained_cfg_overlay=file, **build)
    again = timm.create_model("test_crate", pretrained_cfg_overlay={**file, "input_size": (12, 32, 32)}, **build)
    assert torch.equal(again.patch_embed.proj.weight, model.patch_embed.proj.weight)
    stated = {"pretrained_cfg_overlay": {"state_dict": source("test_crate").state_dict()}, **build}
    other = timm.create_model("test_crate", pretrained_model_args={"in_chans": 3}, **stated)
    assert other.patch_embed.proj.weight.shape == (48, 192)


def test_patch_size_resamples_stem_and_grid() -> None:
    """Patches of 16 on an image twice the size: the same grid and nearly the same features."""
    model = source("test_crate")
    big = load(model.state_dict(), "test_crate", patch_size=16, img_size=64)
    assert torch.equal(big.pos_embed, model.pos_embed)
    smooth = nn.functional.interpolate(images(2, 3, 8, 8), size=(32, 32), mode="bicubic")
    features = big(nn.functional.interpolate(smooth, scale_factor=2, mode="bicubic"))
    assert nn.functional.cosine_similarity(features, model(smooth)).mean() > 0.9


def test_unknown_linear_stem() -> None:
    state = source("test_crate").state_dict()
    state["patch_embed.proj.weight"] = torch.zeros(48, 100)
    with pytest.raises(ValueError, match=r"has 100 inputs, the model 192.*no square patch of 3 channels"):
        load(state, "test_crate")


def test_rectangular_patch_and_own_channels_are_left_alone() -> None:
    model = source("test_crate", patch_size=(8, 4), in_chans=2)
    again = load(model.state_dict(), "test_crate", patch_size=(8, 4), in_chans=2, overlay={"input_size": (2, 32, 32)})
    x = images(2, 2, 32, 32)
    assert torch.equal(again(x), model(x))
