"""Frozen features: modes, order and errors in one process, exact counts in several."""

import tempfile
from pathlib import Path

import pytest
import timm
import torch
import torch.multiprocessing as mp
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


def gather_in_process(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    loaded = extract_features(toy_model(), toy_loader(21))
    batches = list(toy_loader(21))  # any iterable will do
    torch.save((loaded, extract_features(toy_model(), batches)), f"{folder}/{rank}.pt")
    with pytest.raises(ValueError, match="in order"):
        extract_features(toy_model(), toy_loader(21, shuffle=True))
    assert len(extract_features(toy_model(), toy_loader(3))[0]) == 3  # fewer batches than processes
    broken = [(images.clone().fill_(float("nan")) if i == 1 else images, y) for i, (images, y) in enumerate(batches)]
    with pytest.raises(ValueError, match="NaN"):  # raised on every rank, nobody waits for ever
        extract_features(toy_model(), broken)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_features_do_not_depend_on_the_number_of_processes(world: int) -> None:
    # 21 images in batches of 5: five batches, so the shares differ and the last batch is short
    z, y = extract_features(toy_model(), toy_loader(21))
    assert z.shape == (21, 8)
    assert y.tolist() == list(range(21))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(gather_in_process, args=(world, folder), nprocs=world)
        for rank in range(world):
            for rank_z, rank_y in torch.load(Path(folder) / f"{rank}.pt"):
                assert torch.equal(rank_z, z)
                assert torch.equal(rank_y, y)


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
