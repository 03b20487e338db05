"""Where SACReg touches the backbone decides what it can be met by."""

import warnings

import pytest
import torch
from torch import Tensor

from aotadmm_timm.losses import sacreg
from aotadmm_timm.methods.feature_tap import FeatureTap, TapName


def minimise(tap: TapName, num: int = 32) -> tuple[float, Tensor]:
    """SACReg minimised over `num` non-negative vectors (a ReLU's output) as seen through a tap: value, vectors."""
    torch.manual_seed(0)
    raw = torch.nn.Parameter(0.5 * torch.randn(num, num) + 0.5)
    optimizer = torch.optim.Adam([raw], lr=0.05)
    module = FeatureTap(tap)
    for _ in range(800):
        value = sacreg(module(raw.relu()[None], 1)[0]) / num
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return float(value.detach()), raw.detach().relu()


@pytest.mark.filterwarnings("ignore:the tapped backbone features have no negative entry")
def test_non_negative_features_take_a_shortcut_that_the_default_tap_does_not_have() -> None:
    value, h = minimise("features")
    # each coordinate fires for one image: all but 1 in 32 entries are zero, the others are sqrt(32) = 5.7
    assert value < 0.15  # where 32 centres in 32 dimensions can get: one direction is lost to the mean
    assert float((h == 0).float().mean()) > 0.96
    assert float(h.max()) > 5.5
    assert ((h > 1).sum(0) == 1).all()

    value, h = minimise("norm")
    tapped = FeatureTap("norm")(h[None], 1)[0]
    assert value < 0.15
    assert float((h == 0).float().mean()) < 0.4
    assert float(tapped.abs().max()) < 4  # of a Gaussian of this size: about 3.3
    kurtosis = tapped.pow(4).mean() / tapped.square().mean().square()
    assert float(kurtosis) < 3.5  # 3 for a Gaussian, 32 for the spikes


def test_norm_has_no_parameters_and_gives_both_signs() -> None:
    torch.manual_seed(0)
    tap, h = FeatureTap(), torch.rand(3, 5, 8)
    assert tap.name == "norm"
    assert not list(tap.parameters())
    centers, logged = tap(h, 2)
    normed = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(centers, normed[:2].mean(0), atol=1e-6)  # the third view is a local one
    assert float(logged["tap_max"]) == pytest.approx(float(normed[:2].max()))
    assert float(logged["tap_zeros"]) == 0


def test_features_are_taken_as_they_are_and_logged() -> None:
    h = torch.tensor([[[0.0, 2.0], [-1.0, 0.0]], [[0.0, 4.0], [3.0, 0.0]]])
    centers, logged = FeatureTap("features")(h, 2)
    assert torch.equal(centers, torch.tensor([[0.0, 3.0], [1.0, 0.0]]))
    assert float(logged["tap_zeros"]) == 0.5
    assert float(logged["tap_max"]) == 4


def test_non_negative_features_are_pointed_out_once() -> None:
    tap, h = FeatureTap("features"), torch.rand(2, 3, 4)
    with pytest.warns(UserWarning, match='no negative entry.*Tap "norm" avoids it'):
        tap(h, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tap(h, 2)
        FeatureTap("norm")(h, 2)
        FeatureTap("features")(h - 0.5, 2)


def test_unknown_tap_is_named() -> None:
    with pytest.raises(ValueError, match="got 'cls'"):
        FeatureTap("cls")  # type: ignore[arg-type]
