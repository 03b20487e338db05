"""Batched crops against torchvision and Pillow, one image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from aotadmm_timm.data.crops import DRAWS, crop_picture, crop_resize, crop_rotate, draw_boxes

BOXES = torch.tensor([[0, 0, 32, 40], [3, 5, 7, 30], [10, 20, 20, 9], [31, 39, 1, 1], [2, 2, 16, 16]])


def images(n: int, height: int = 32, width: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("out_size", [8, 16, 32])
def test_equals_torchvision_resized_crop(out_size: int) -> None:
    batch = images(2)
    flips = torch.tensor([False, True, False, True, False]).expand(2, -1)
    got = crop_resize(batch, BOXES.expand(2, -1, -1), flips, out_size)
    assert got.shape == (5, 2, 3, out_size, out_size)
    for view, (top, left, height, width) in enumerate(BOXES.tolist()):
        for i in range(2):
            want = TF.resized_crop(batch[i].float(), top, left, height, width, [out_size, out_size], antialias=True)
            want = TF.horizontal_flip(want) if flips[i, view] else want
            torch.testing.assert_close(got[view, i], want, rtol=0, atol=2e-3)  # of 255


def test_equals_pillow_within_rounding() -> None:
    batch = images(1)
    picture = Image.fromarray(batch[0].permute(1, 2, 0).numpy())
    flips = torch.tensor([[True, False, True, False, True]])
    got = crop_resize(batch, BOXES[None], flips, 16)
    for view, box in enumerate(BOXES.numpy()):
        want = crop_picture(picture, box, bool(flips[0, view]), 16)
        assert np.abs(got[view, 0].numpy() - want).max() <= 1.01  # Pillow rounds after each of the two directions


def test_boxes_have_torchvisions_distribution() -> None:
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    n = 4000
    u = np.random.default_rng(0).random((n, DRAWS))
    boxes, flips = draw_boxes(u, (32, 48), scale=scale, ratio=ratio, hflip=0.3)
    torch.manual_seed(0)
    image = torch.zeros(3, 32, 48)
    theirs = (
        np.array([v2.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(n)])
        if hasattr(v2.RandomResizedCrop, "get_params")
        else np.array([list(v2.RandomResizedCrop(8, scale, ratio).make_params([image]).values()) for _ in range(n)])
    )
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= 32).all()
    assert (boxes[:, 1] + boxes[:, 3] <= 48).all()
    for column in range(4):
        spread = boxes[:, column].std() + theirs[:, column].std()
        assert abs(boxes[:, column].mean() - theirs[:, column].mean()) < 3 * spread / n**0.5
        assert boxes[:, column].std() == pytest.approx(theirs[:, column].std(), rel=0.06)
    assert flips.mean() == pytest.approx(0.3, abs=0.03)


def test_no_box_fits_takes_the_central_one() -> None:
    u = np.full((1, DRAWS), 0.999)
    boxes, _ = draw_boxes(u, (10, 100), scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3), hflip=0.0)
    assert boxes.tolist() == [[0, 43, 10, 13]]


def test_rotation_by_nothing_and_by_a_quarter_turn() -> None:
    batch = images(2, 16, 16)
    box = torch.tensor([0, 0, 16, 16]).expand(2, 3, 4)
    flips = torch.tensor([False, False, True]).expand(2, 3)
    angles = torch.tensor([0.0, np.pi / 2, 0.0]).expand(2, 3)
    still, turned, mirrored = crop_rotate(batch, box, flips, angles, 16)
    torch.testing.assert_close(still, batch.float(), rtol=0, atol=1e-2)
    torch.testing.assert_close(mirrored, batch.float().flip(-1), rtol=0, atol=1e-2)
    quarter = batch.float().rot90(1, (2, 3))
    assert min((turned - quarter).abs().max(), (turned - quarter.flip(2, 3)).abs().max()) < 0.05


def test_rotated_crop_shows_the_box() -> None:
    # a box at its own size, not turned, is the box itself
    batch = images(1, 16, 16)
    got = crop_rotate(batch, torch.tensor([[[3, 5, 8, 8]]]), torch.tensor([[False]]), torch.zeros(1, 1), 8)
    torch.testing.assert_close(got[0], batch[:, :, 3:11, 5:13].float(), rtol=0, atol=1e-2)
