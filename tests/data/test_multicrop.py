"""Views of a batch: shapes, what they depend on, and that the two ways of cutting them agree."""

import numpy as np
import pytest
import torch
from PIL import Image

from aotadmm_timm.data.multicrop import DIGITS, MultiCrop
from aotadmm_timm.data.photometric import Photometric

INDEX = np.array([40, 3, 17, 5])


def images(n: int = 4) -> torch.Tensor:
    coarse = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(coarse, size=32, mode="bicubic").clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("crop", [MultiCrop(), DIGITS, MultiCrop(num_global=3, num_local=0, global_size=24)])
def test_shapes_and_range(crop: MultiCrop) -> None:
    views = crop(images(), 0, INDEX)
    shapes = [(crop.num_global, 4, 3, crop.global_size, crop.global_size)]
    shapes += [(crop.num_local, 4, 3, crop.local_size, crop.local_size)] if crop.num_local else []
    assert [tuple(v.shape) for v in views] == shapes
    for v in views:
        assert v.is_contiguous()
        assert v.dtype == torch.float32
        assert v.abs().max() <= 1 + 1e-5  # mean and std are .5


@pytest.mark.parametrize("crop", [MultiCrop(seed=3), DIGITS.replace(seed=3)])
def test_a_view_is_a_function_of_seed_epoch_index_and_view(crop: MultiCrop) -> None:
    whole = crop(images(), 2, INDEX)
    alone = crop(images()[2:3], 2, INDEX[2:3])
    for many, one in zip(whole, alone, strict=True):
        torch.testing.assert_close(many[:, 2:3], one, rtol=0, atol=1e-5)
    again = crop(images()[[1, 0]], 2, INDEX[[1, 0]])
    torch.testing.assert_close(again[0], whole[0][:, [1, 0]], rtol=0, atol=1e-5)
    others = [
        crop(images(), 3, INDEX),
        crop(images(), 2, INDEX + 1),
        crop.replace(seed=4)(images(), 2, INDEX),
        [whole[0].flip(0)],
    ]
    for other in others:
        assert ((other[0] - whole[0]).abs().mean((2, 3, 4)) > 1e-3).all()


def test_both_ways_of_cutting_agree_within_rounding() -> None:
    crop = MultiCrop(photometric=Photometric(solarize_prob=0.0))  # solarize is a jump: rounding may cross it
    memory = crop(images(), 1, INDEX)
    pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in images()]
    cut = [crop.crop_picture(p, 1, int(i)) for p, i in zip(pictures, INDEX, strict=True)]
    groups = [torch.from_numpy(np.stack(g, 1)).float().div(255) for g in zip(*cut, strict=True)]
    loader = crop.color(groups, 1, INDEX)
    for a, b in zip(memory, loader, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().mean() < 0.01
        assert (a - b).abs().max() < 0.1


def test_normalization_and_a_tile_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    crop = MultiCrop(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    plain = MultiCrop(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    got, raw = crop(images(), 0, INDEX), plain(images(), 0, INDEX)
    mean, std = torch.tensor(crop.mean).view(3, 1, 1), torch.tensor(crop.std).view(3, 1, 1)
    torch.testing.assert_close(got[0], (raw[0] - mean) / std)
    monkeypatch.setattr("aotadmm_timm.data.multicrop._TILE", {"cpu": 3 * 32 * 32})
    torch.testing.assert_close(crop(images(), 0, INDEX)[0], got[0], rtol=0, atol=1e-5)


def test_gray_images_get_crops_and_no_color() -> None:
    crop = MultiCrop(mean=(0.5,), std=(0.5,))
    assert crop(images()[:, :1], 0, INDEX)[0].shape == (2, 4, 1, 32, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_global": 0}, "at least one global view"),
        ({"num_local": -1}, "-1 local"),
        ({"local_scale": (0.3, 0.1)}, "local_scale.*0.3, 0.1"),
        ({"global_scale": (0.0, 1.0)}, "global_scale"),
        ({"global_scale": (0.5, 1.5)}, "global_scale"),
        ({"local_size": 0}, "local_size"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiCrop().replace(**changes)
