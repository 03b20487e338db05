"""The features that scores compare with."""

import torch

from aotadmm_timm.evaluation.scores import Pixels


def test_pixels_are_themselves_up_to_32_and_means_of_a_grid_above() -> None:
    small, tall = torch.rand(2, 3, 32, 28), torch.rand(2, 3, 96, 64)
    assert torch.equal(Pixels()(small), small.flatten(1))
    grid = tall.reshape(2, 3, 32, 3, 32, 2).mean((3, 5))
    torch.testing.assert_close(Pixels()(tall), grid.flatten(1))
