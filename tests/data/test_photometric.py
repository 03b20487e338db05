"""Batched color operations against torchvision's, image by image."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as TF

from aotadmm_timm.data import photometric
from aotadmm_timm.data.photometric import DRAWS, Photometric, augment

SIZE = (12, 10)


def planes(n: int = 6) -> torch.Tensor:
    x = torch.rand(3, n, SIZE[0] * SIZE[1], generator=torch.Generator().manual_seed(0))
    x[:, 0] = x[:1, 0]  # one gray image: no hue, no saturation
    x[:, 1, :20] = 0.0
    x[:, 1, 20:40] = 1.0
    return x


def pictures(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).unflatten(2, SIZE)


CHANGES = torch.tensor([-0.4, -0.1, 0.0, 0.05, 0.1, 0.4])[:, None]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (photometric.brightness, lambda x, c: TF.adjust_brightness(x, 1 + c)),
        (photometric.contrast, lambda x, c: TF.adjust_contrast(x, 1 + c)),
        (photometric.saturation, lambda x, c: TF.adjust_saturation(x, 1 + c)),
        (photometric.hue, TF.adjust_hue),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_jitter_equals_torchvision(ours, theirs) -> None:  # type: ignore[no-untyped-def]
    x = planes()
    before = pictures(x).clone()
    ours(x, CHANGES)
    for i, change in enumerate(CHANGES[:, 0].tolist()):
        # torchvision's weights of gray sum to .9999
        torch.testing.assert_close(pictures(x)[i], theirs(before[i], change), rtol=0, atol=1e-4)


def test_luma_equals_torchvision() -> None:
    want = TF.rgb_to_grayscale(pictures(planes()))[:, 0].flatten(1)
    torch.testing.assert_close(photometric.luma(planes()), want, rtol=0, atol=1e-3)


def test_blur_equals_torchvision_inside() -> None:
    sigma = torch.tensor([0.3, 0.5, 0.8, 1.0, 1.2, 1.5])
    got = pictures(photometric.blur(planes(), SIZE, sigma))
    inside = (slice(None), slice(5, -5), slice(4, -4))
    for i, s in enumerate(sigma.tolist()):
        want = TF.gaussian_blur(pictures(planes())[i], [9, 9], [s, s])
        torch.testing.assert_close(got[i][inside], want[inside], rtol=0, atol=2e-3)  # our kernel is not cut at 9
    flat = torch.full((3, 6, SIZE[0] * SIZE[1]), 0.7)
    torch.testing.assert_close(photometric.blur(flat, SIZE, sigma), flat)


def draws(**values: float) -> np.ndarray:
    names = ("jitter", "brightness", "contrast", "saturation", "hue", "gray", "blur", "sigma", "solarize", "spare")
    assert len(names) == DRAWS
    u = np.full((6, DRAWS), 0.999)  # nothing happens
    u[:, 1:5] = 0.5
    for name, value in values.items():
        u[:, names.index(name)] = value
    return u


ORDER = np.array([2, 0, 3, 1])


def test_what_is_not_drawn_does_not_happen() -> None:
    x = planes()
    augment(x, SIZE, draws(), ORDER, Photometric())
    torch.testing.assert_close(x, planes(), rtol=0, atol=1e-6)


def test_order_and_factors_of_the_jitter() -> None:
    x = planes()
    augment(x, SIZE, draws(jitter=0.1, brightness=0.9, contrast=0.2, saturation=0.7, hue=0.3), ORDER, Photometric())
    want = pictures(planes())
    want = TF.adjust_saturation(want, 1 + 0.4 * 0.2)
    want = TF.adjust_brightness(want, 1 + 0.8 * 0.4)
    want = TF.adjust_hue(want, -0.4 * 0.1)
    want = torch.stack([TF.adjust_contrast(w, 1 - 0.6 * 0.4) for w in want])
    torch.testing.assert_close(pictures(x), want, rtol=0, atol=1e-4)


def test_gray_and_solarize_touch_their_samples_only() -> None:
    u = draws()
    u[2, 5] = u[4, 8] = 0.0
    x = planes()
    augment(x, SIZE, u, ORDER, Photometric())
    others = [0, 1, 3, 5]
    torch.testing.assert_close(x[:, others], planes()[:, others], rtol=0, atol=1e-6)
    torch.testing.assert_close(x[:, 2], photometric.luma(planes())[2].expand(3, -1), rtol=0, atol=1e-6)
    want = TF.solarize(pictures(planes())[4], 0.5)
    torch.testing.assert_close(pictures(x)[4], want, rtol=0, atol=1e-6)


def test_solarize_reaches_the_stated_share() -> None:
    # RandomApply([RandomSolarize()], .2) would reach a tenth only
    u = np.random.default_rng(0).random((4000, DRAWS))
    spec = Photometric(jitter=(0, 0, 0, 0), gray_prob=0, blur_prob=0, solarize_prob=0.2)
    x = torch.full((3, 4000, 4), 0.75)
    augment(x, (2, 2), u, ORDER, spec)
    assert (x[0, :, 0] < 0.5).float().mean().item() == pytest.approx(0.2, abs=0.02)


def test_stays_in_range_and_leaves_other_channel_counts_alone() -> None:
    u = np.random.default_rng(0).random((6, DRAWS))
    x = planes()
    augment(x, SIZE, u, ORDER, Photometric(jitter=(0.8, 0.8, 0.8, 0.5)))
    assert x.min() >= 0
    assert x.max() <= 1
    gray = torch.rand(1, 6, 120)
    before = gray.clone()
    augment(gray, SIZE, u, ORDER, Photometric())
    assert torch.equal(gray, before)
