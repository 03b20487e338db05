"""Frozen features: modes, order and errors in one process, exact counts in several."""

from pathlib import Path

import pytest
import timm
import torch
from processes import run_processes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from aotadmm_timm.evaluation import extract_features


def toy_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))


def toy_loader(count: int, batch_size: int = 5, **kwargs: object) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 4, 4, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(count)), batch_size=batch_size, **kwargs)


def gather() -> list[tuple[Tensor, Tensor]]:
    """In each process: a DataLoader, any iterable, fewer batches than processes; then what must be refused."""
    batches = list(toy_loader(21))
    results = [extract_features(toy_model(), loader) for loader in (toy_loader(21), batches, toy_loader(3))]
    with pytest.raises(ValueError, match="in order"):
        extract_features(toy_model(), toy_loader(21, shuffle=True))
    broken = [(torch.full_like(x, torch.nan) if i == 1 else x, y) for i, (x, y) in enumerate(batches)]
    with pytest.raises(ValueError, match="NaN"):  # raised on every rank: nobody waits for ever
        extract_features(toy_model(), broken)
    return results


@pytest.mark.parametrize("world", [2, 4])
def test_features_do_not_depend_on_the_number_of_processes(world: int, tmp_path: Path) -> None:
    # 21 images in batches of 5: five batches, so the shares differ and the last batch is short
    z, y = extract_features(toy_model(), toy_loader(21))
    assert z.shape == (21, 8)
    assert y.tolist() == list(range(21))
    for results in run_processes(gather, world, folder=tmp_path):
        for rank_z, rank_y in results:
            assert torch.equal(rank_z, z[: len(rank_z)])
            assert torch.equal(rank_y, y[: len(rank_y)])
        assert [len(rank_z) for rank_z, _ in results] == [21, 21, 3]


def test_eval_mode_is_used_and_the_old_mode_restored() -> None:
    model = toy_model().train()
    before = model[2].running_mean.clone()
    first, _ = extract_features(model, toy_loader(8))
    second, _ = extract_features(model, toy_loader(8))
    assert model.training
    assert torch.equal(first, second)  # dropout was off
    assert torch.equal(model[2].running_mean, before)
    assert not first.requires_grad


def test_a_classifier_is_looked_past() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32, depth=1).eval()
    images = torch.randn(2, 3, 32, 32)
    z, _ = extract_features(model, [(images, torch.zeros(2))])
    model.reset_classifier(0)
    with torch.no_grad():
        torch.testing.assert_close(z, model(images))


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mT


@pytest.mark.parametrize(
    ("model", "loader", "message"),
    [
        (toy_model(), [], "no image"),
        (Tokens(), toy_loader(5), r"\(5, d\), one row an image; got \(5, 16, 3\)"),
        (toy_model(), [(torch.zeros(2, 3, 4, 4), torch.zeros(3))], r"labels must be \(2,\).*\(3,\)"),
        (toy_model(), [(torch.full((2, 3, 4, 4), torch.nan), torch.zeros(2))], "2 of 2 images have NaN"),
    ],
)
def test_bad_input_is_named(model: nn.Module, loader: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        extract_features(model, loader)
