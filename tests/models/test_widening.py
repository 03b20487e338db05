"""A widened model computes its narrow one's features, and does not stay that way."""

import pytest
import timm
import torch

import aotadmm_timm  # noqa: F401
from aotadmm_timm.models.widening import widened

NARROW = {"embed_dim": 48, "num_heads": 3}


@pytest.mark.parametrize("name", ["test_aot_admm", "aot_tiny", "test_vit_mlpfree", "test_vit"])
@pytest.mark.parametrize("times", [2, 3])
def test_the_same_features_several_times_over(name: str, times: int) -> None:
    torch.manual_seed(0)
    narrow = timm.create_model(name, depth=3, num_classes=0, **NARROW).eval()
    wide = timm.create_model(name, depth=3, num_classes=0, embed_dim=48 * times, num_heads=3 * times).eval()
    with torch.no_grad():
        for parameter in narrow.parameters():  # biases and gains that are not what they start as
            parameter.add_(0.05 * torch.randn_like(parameter))
    wide.load_state_dict(widened(narrow.state_dict(), wide.state_dict()))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(wide(images), narrow(images).repeat(1, times), rtol=1e-4, atol=1e-5)

    wide.train()
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wide(images).square().sum(1).log().sum().backward()
        optimizer.step()
    first, second, *_ = wide(images).chunk(times, dim=1)
    assert (first - second).abs().max() > 1e-4


def test_what_cannot_be_widened_is_named() -> None:
    def state(name: str, **kwargs: int) -> dict[str, torch.Tensor]:
        return timm.create_model(name, depth=1, num_classes=0, **kwargs).state_dict()

    narrow = state("test_aot_admm", **NARROW)
    with pytest.raises(ValueError, match=r"of shape \(1, 1, 48\) does not divide \(1, 1, 72\)"):
        widened(narrow, state("test_aot_admm", embed_dim=72, num_heads=3))
    with pytest.raises(ValueError, match=r"ista\.dictionary is used in both directions"):
        widened(state("test_crate", **NARROW), state("test_crate", embed_dim=96, num_heads=6))
    tied = [
        timm.create_model("test_aot_admm", num_classes=0, tied_proj=True, embed_dim=d, num_heads=h).state_dict()
        for d, h in ((48, 3), (96, 6))
    ]
    with pytest.raises(ValueError, match=r"attn\.qkv\.weight is used in both directions"):
        widened(*tied)
    with pytest.raises(ValueError, match=r"blocks\.0\.gain is in one of the two models only"):
        widened(narrow, state("aot_tiny", embed_dim=96, num_heads=6))
