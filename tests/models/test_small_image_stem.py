"""small_image_stem: full resolution into the first stage, timm's own names, and it loads by local-dir."""

from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import nn

import aotadmm_timm  # noqa: F401  (registers the models)

BASES = ["resnet10t", "test_resnet", "test_convnext", "test_efficientnet", "densenet121"]


@pytest.mark.parametrize("base", BASES)
def test_first_convolution_keeps_the_resolution(base: str) -> None:
    model = timm.create_model("small_image_stem", base=base, num_classes=0).eval()
    plain = timm.create_model(base, num_classes=0).eval()
    first = model.get_submodule(model.pretrained_cfg["first_conv"])
    assert (first.kernel_size, first.stride, first.padding) == ((3, 3), (1, 1), (1, 1))
    x = torch.zeros(1, 3, 64, 64)
    with torch.no_grad():
        ratio = model.forward_features(x).shape[-1] / plain.forward_features(x).shape[-1]
        assert model(x).shape == plain(x).shape
    assert ratio >= 2
    changed = {k for k, v in model.state_dict().items() if v.shape != plain.state_dict()[k].shape}
    assert changed <= {model.pretrained_cfg["first_conv"] + ".weight"}
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_resnet18_is_the_usual_cifar_resnet() -> None:
    model = timm.create_model("small_image_stem", base="resnet18", num_classes=10)
    assert isinstance(model.maxpool, nn.Identity)
    assert model.forward_features(torch.zeros(1, 3, 32, 32)).shape == (1, 512, 4, 4)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962  # as in the literature


@pytest.mark.parametrize("base", [*BASES, "resnet18"])
def test_feature_pyramid_has_the_strides_it_names(base: str) -> None:
    pyramid = timm.create_model("small_image_stem", base=base, features_only=True).eval()
    with torch.no_grad():
        maps = pyramid(torch.zeros(1, 3, 64, 64))
    assert [64 // m.shape[-1] for m in maps] == pyramid.feature_info.reduction()
    assert [m.shape[1] for m in maps] == pyramid.feature_info.channels()
    model = timm.create_model("small_image_stem", base=base)
    assert model.forward_features(torch.zeros(1, 3, 32, 32)).shape[-2:] == model.pretrained_cfg["pool_size"]


def test_saved_and_loaded_by_timm_alone(tmp_path: Path) -> None:
    model = timm.create_model("small_image_stem", base="test_resnet", num_classes=5).eval()
    save_for_hf(model, tmp_path, model_args={"base": "test_resnet"}, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(x), model(x))
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=3).eval()
    assert other(x).shape == (2, 3)
    name = model.pretrained_cfg["classifier"]
    for key, value in other.state_dict().items():
        assert key.startswith(name) or torch.equal(value, model.state_dict()[key])


@pytest.mark.parametrize("base", ["test_vit", "aot_admm_tiny", "vit_tiny_mlpfree"])
def test_models_without_a_convolutional_stem_are_refused(base: str) -> None:
    with pytest.raises(ValueError, match=f"{base} has no convolutional stem"):
        timm.create_model("small_image_stem", base=base)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="unknown base 'resnet19'"):
        timm.create_model("small_image_stem", base="resnet19")
