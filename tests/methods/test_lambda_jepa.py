"""lambda-JEPA against its formula written out by hand; its averaged target and what a checkpoint holds."""

import pytest
import torch
from methods.backbones import Linear, random_views, tiny_vit
from torch import nn

from aotadmm_timm.losses import SACReg, pairwise_invariance
from aotadmm_timm.methods import LambdaJEPA, Method, Plan
from aotadmm_timm.methods.multi_view import backbone_features


def small(target: str = "pairwise", backbone: nn.Module | None = None, **options: float) -> LambdaJEPA:
    torch.manual_seed(1)
    return LambdaJEPA(backbone or Linear(), target=target, projector=(8, 4), **options)  # type: ignore[arg-type]


def train(method: Method, steps: range, total: int = 10) -> list[float]:
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    method.begin(Plan(total, total, 16, 2, 1))
    losses = []
    for step in steps:
        loss = method(random_views(16, seed=step), step).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step(step)
        losses.append(float(loss.detach()))
    return losses


def test_hand_formula() -> None:
    method, views = small(inv_weight=3.0, projector_sacreg=5.0, backbone_sacreg=7.0), random_views(16)
    out = method(views, 4)
    h = backbone_features(method.backbone, views)
    z = method.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2])
    centers = nn.functional.layer_norm(h[:2], (6,)).mean(0)
    inv = pairwise_invariance(z)  # over all three views; the centres are of the two global ones
    sac_z, sac_h = SACReg(2)(z[:2].mean(0), 4), SACReg(2, stream=1)(centers, 4)
    for name, value in (("inv", inv), ("projector_sacreg", sac_z), ("backbone_sacreg", sac_h)):
        assert torch.allclose(out.terms[name], value, rtol=1e-5)
    assert torch.allclose(out.loss, 3 * inv + 5 * sac_z + 7 * sac_h, rtol=1e-5)
    assert not any(value.requires_grad for value in (*out.terms.values(), out.features))
    assert {"tap_zeros", "tap_max"} <= set(out.terms)


def test_averaged_target() -> None:
    method, views = small("ema"), random_views(16)
    train(method, range(3))
    out = method(views, 5)
    h = backbone_features(method.backbone, views)
    z = method.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2])
    average = backbone_features(method.target_network, views).mean(0)
    assert torch.allclose(out.terms["inv"], 3 * (z - average).square().mean(), rtol=1e-4)  # 2 V / (V - 1) = 3 for V = 3
    assert not torch.allclose(out.terms["inv"], pairwise_invariance(z), rtol=1e-3)
    out.loss.backward()
    assert all(p.grad is None for p in method.target_network.parameters())


@pytest.mark.parametrize(("step", "tau"), [(0, 0.996), (5, 0.998), (10, 1.0)])
def test_target_moves_by_the_schedule(step: int, tau: float) -> None:
    method = small("ema")
    before = [p.clone() for p in method.target_network.parameters()]
    with torch.no_grad():
        for p in method.parameters():
            p.add_(1.0 if p.requires_grad else 0.0)
    method.projector[1].running_mean.fill_(3.0)
    method.begin(Plan(10, 5, 16, 2, 1))
    method.after_step(step)
    for old, new in zip(before, method.target_network.parameters(), strict=True):
        assert torch.allclose(new, old + (1 - tau), atol=1e-6)
    assert float(method.target_network.module[1][1].running_mean.mean()) == 3.0


def test_target_is_evaluated_without_drop_path() -> None:
    method = small("ema").train()
    assert not method.target_network.module.training
    assert method.projector.training
    assert small("pairwise").train().training
    small("pairwise").after_step(0)  # nothing to move


@pytest.mark.parametrize("target", ["pairwise", "ema"])
def test_a_resumed_run_takes_the_same_steps(target: str) -> None:
    through = train(small(target), range(6))
    first = small(target)
    train(first, range(3))
    resumed = small(target)
    resumed.load_state_dict(first.state_dict())
    assert train(resumed, range(3, 6)) == through[3:]
    # which needs the past batches
    forgetful = small(target)
    forgetful.load_state_dict({k: v for k, v in first.state_dict().items() if ".past_" not in k}, strict=False)
    assert train(forgetful, range(3, 6)) != through[3:]


def test_bf16() -> None:
    method = small("ema", tiny_vit())
    with torch.autocast("cpu", torch.bfloat16):
        out = method(random_views(16), 0)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.requires_grad)  # type: ignore[union-attr]


def test_convention_and_weights() -> None:
    method = small(inv_weight=3.0)
    assert method.convention() == {
        "method": "lambda-JEPA",
        "target": "pairwise",
        "inv": 3.0,
        "projector_sacreg": 157.8,
        "backbone_sacreg": 1.894,
        "calibrated at step": "never",
        "projector": "8-4",
        "slice widths": "2, 2",
        "buffered batches": "3, 3",
        "tap": "norm",
    }
    with pytest.raises(ValueError, match="finite and at least 0"):
        method.set_weights({"inv": 1.0, "projector_sacreg": -1.0, "backbone_sacreg": 1.0})
    with pytest.raises(ValueError, match=r"'inv': 1\.0"):
        method.set_weights({"inv": 1.0})
    with pytest.raises(ValueError, match="got 'mean'"):
        small("mean")
