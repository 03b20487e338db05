"""The projector and its BatchNorm in one process; over ranks see tests/test_distributed.py."""

import pytest
import torch
from torch import nn

from aotadmm_timm.methods.projector import BatchNorm, Projector


def test_batch_norm_is_torchs_in_one_process() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5), nn.BatchNorm1d(5)
    x = 3 * torch.randn(16, 5) + 1
    assert torch.equal(ours(x), theirs(x))
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_a_single_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 2 rows to train, got input of shape \(1, 5\)"):
        BatchNorm(5)(torch.zeros(1, 5))
    assert BatchNorm(5).eval()(torch.zeros(1, 5)).shape == (1, 5)


def test_layers() -> None:
    layers = [type(layer).__name__ for layer in Projector(6, 8, 7, 3)]
    assert layers == ["Linear", "BatchNorm", "ReLU", "Linear", "BatchNorm", "ReLU", "Linear"]
    assert [type(layer).__name__ for layer in Projector(6, 3)] == ["Linear"]
    assert Projector(6, 8, 3)(torch.randn(4, 6)).shape == (4, 3)
    for dims in ((), (8, 0)):
        with pytest.raises(ValueError, match=r"needs positive widths.*got \(6"):
            Projector(6, *dims)
