"""Whatever looks at a model leaves every submodule in the mode that it was in, and no statistic moves."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from aotadmm_timm.data import load_images
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.evaluating import evaluating
from aotadmm_timm.evaluation import attention_maps, extract_features, layer_curves, patch_pca, theory_gap
from aotadmm_timm.evaluation.view_features import extract_view_features

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def loader() -> DataLoader:
    return DataLoader(TensorDataset(IMAGES, torch.arange(6)), batch_size=3)


def broken_loader() -> list[tuple[Tensor, Tensor]]:
    return [(IMAGES, torch.arange(6)), (torch.full_like(IMAGES, torch.nan), torch.arange(6))]


def frozen(name: str, **kwargs: Any) -> nn.Module:
    """A model in training, of which its owner has frozen some layers."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **kwargs).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm | nn.Dropout)]
    for module in norms[::2]:
        module.eval()
    return model


def two_views(model: nn.Module) -> None:
    images = load_images("digits", "train").subset(range(6))
    extract_view_features({"m": model}, images, MultiCrop().replace(num_global=2, global_size=32))


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("test_resnet", lambda model: extract_features(model, loader())),
        ("test_resnet", two_views),
        ("test_aot_admm", lambda model: layer_curves(model, IMAGES)),
        ("test_aot_admm", lambda model: theory_gap(model, IMAGES)),
        ("test_aot_admm", lambda model: attention_maps(model, IMAGES)),
        ("test_aot_admm", lambda model: patch_pca(model, IMAGES)),
    ],
)
def test_frozen_layers_stay_frozen(name: str, look: Callable[[nn.Module], object]) -> None:
    model = frozen(name)
    modes = [module.training for module in model.modules()]
    assert True in modes
    assert False in modes
    state = {key: value.clone() for key, value in model.state_dict().items()}
    look(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_they_stay_frozen_when_the_look_fails() -> None:
    model = frozen("test_resnet")
    modes = [module.training for module in model.modules()]
    with pytest.raises(ValueError, match="NaN"):
        extract_features(model, broken_loader())
    assert [module.training for module in model.modules()] == modes


def test_dropout_is_off_inside_and_models_share_one_context() -> None:
    first, second = nn.Sequential(nn.Dropout(0.5)), nn.Sequential(nn.Dropout(0.5).eval())
    with evaluating(first, second):
        assert not any(module.training for model in (first, second) for module in model.modules())
    assert [first.training, first[0].training, second.training, second[0].training] == [True, True, True, False]
