"""Weights to start from: which file of a folder is meant."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

import aotadmm_timm  # noqa: F401  (registers the models)
from aotadmm_timm.errors import UserError
from aotadmm_timm.pretrained import initialize, open_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with another epoch's weights beside its own."""
    for epoch, file in ((9, "model.safetensors"), (5, "epoch5.safetensors")):
        model = timm.create_model("test_aot_admm", num_classes=4, img_size=48)
        torch.nn.init.constant_(model.cls_token, epoch)
        if file == "model.safetensors":
            save_for_hf(model, str(tmp_path), safe_serialization=True, model_args={"img_size": 48})
        else:
            save_file(model.state_dict(), tmp_path / file)
    return tmp_path


def test_a_file_beside_a_config_is_the_one_that_is_loaded(folder: Path) -> None:
    for file, epoch in (("epoch5.safetensors", 5), ("model.safetensors", 9)):
        model, _ = open_model(folder / file)
        assert bool((model.cls_token == epoch).all())
        assert model.patch_embed.img_size == (48, 48)
        assert model.num_classes == 4
    smaller, _ = open_model(folder / "epoch5.safetensors", img_size=32)
    assert smaller.patch_embed.img_size == (32, 32)


def test_a_file_that_does_not_fit_is_named_with_its_keys(folder: Path) -> None:
    save_file({"foo": torch.zeros(3)}, folder / "foo.safetensors")
    with pytest.raises(ValueError, match=r"foo\.safetensors: does not fit test_aot_admm: .*foo \(3,\) has no place"):
        open_model(str(folder / "foo.safetensors"))
    with pytest.raises(ValueError, match=r"does not fit test_resnet: .*Missing key\(s\) in state_dict: \"conv1"):
        open_model(str(folder / "foo.safetensors"), model="test_resnet")


def save(folder: Path, **kwargs: int) -> str:
    torch.manual_seed(1)
    model = timm.create_model("test_aot_admm", num_classes=4, **kwargs)
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0.1, 0.2, 0.3)}
    save_for_hf(model, str(folder), safe_serialization=True, model_args=kwargs)
    return str(folder)


@pytest.mark.parametrize("times", [1, 2])
def test_a_backbone_starts_from_a_model_of_its_width_or_a_narrower_one(tmp_path: Path, times: int) -> None:
    source = save(tmp_path)
    backbone = timm.create_model("test_aot_admm", num_classes=0, embed_dim=48 * times, num_heads=3 * times)
    initialize(backbone, source, 32)
    images = torch.randn(2, 3, 32, 32)
    start, _ = open_model(source)
    want = start.forward_head(start.forward_features(images), pre_logits=True)
    torch.testing.assert_close(backbone.eval()(images), want.repeat(1, times), rtol=1e-4, atol=1e-5)
    assert tuple(backbone.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)


def test_finer_patches_see_what_the_stored_ones_see_in_a_larger_image(tmp_path: Path) -> None:
    source = save(tmp_path)
    backbone = timm.create_model("test_aot_admm", num_classes=0, patch_size=4)
    initialize(backbone, source, 32)
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    small, large = (torch.nn.functional.interpolate(images, size, mode="bicubic") for size in (32, 64))
    start, _ = open_model(source, num_classes=0, img_size=64)
    got, want = (z - z.mean(0) for z in (backbone.eval()(small), start(large)))
    assert torch.cosine_similarity(got, want).min() > 0.9


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"embed_dim": 96, "num_heads": 3}, "3 heads cannot become 3"),
        ({"embed_dim": 48, "num_heads": 6}, "3 heads cannot become 6"),
        ({"tau": 0.5}, "computes other features"),
        ({"depth": 2}, "is in one of the two models only"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(tmp_path: Path, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"--initial-checkpoint .*{message}"):
        initialize(timm.create_model("test_aot_admm", num_classes=0, **kwargs), save(tmp_path), 32)
