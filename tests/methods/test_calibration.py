"""Loss weights by gradient share."""

import logging

import pytest
import torch
from methods.backbones import Linear, random_views, tiny_vit

from aotadmm_timm.methods import LambdaJEPA, LeJEPA
from aotadmm_timm.methods.calibration import LAMBDA_JEPA_SHARES, gradient_norms, weights_by_share


def lambda_jepa(calibrate: int = 0, buffer: int = 0) -> LambdaJEPA:
    return LambdaJEPA(
        tiny_vit(), projector=(16, 8), calibrate=calibrate, projector_buffer=buffer, backbone_buffer=buffer
    )


def test_calibrated_terms_have_their_shares_of_the_backbone_gradient() -> None:
    method, views = lambda_jepa(), random_views(32)
    weights = weights_by_share(gradient_norms(method, views), LAMBDA_JEPA_SHARES)
    method.set_weights(weights)
    norms = {}
    for name in weights:  # the gradient of one weighted term at a time, by backward
        method.zero_grad()
        (weights[name] * method.parts(views, 0).terms[name]).backward()
        grads = [p.grad.flatten() for p in method.backbone.parameters() if p.grad is not None]
        norms[name] = float(torch.cat(grads).norm())
    assert norms == pytest.approx({name: 57 * share for name, share in LAMBDA_JEPA_SHARES.items()}, rel=1e-4)


def test_measuring_leaves_the_method_alone() -> None:
    method = lambda_jepa()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    norms = gradient_norms(method, random_views(32))
    assert norms == gradient_norms(method, random_views(32))
    after = method.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in method.parameters())


def test_norms_by_hand_and_of_other_methods() -> None:
    method, views = LeJEPA(Linear(), projector=(), num_slices=8), random_views(8)
    norms = gradient_norms(method, views, step=2)
    assert set(norms) == {"inv", "sigreg"}
    method(views, 2).loss.backward()
    assert method.backbone.map.weight.grad is not None
    terms = method.parts(views, 2).terms
    grads = torch.autograd.grad(terms["inv"], list(method.backbone.parameters()), allow_unused=True)
    assert norms["inv"] == pytest.approx(float(torch.cat([g.flatten() for g in grads if g is not None]).norm()))


def test_weights_by_share() -> None:
    weights = weights_by_share({"a": 2.0, "b": 0.5}, {"a": 0.25, "b": 0.75}, total=8)
    assert weights == {"a": 1.0, "b": 12.0}
    with pytest.raises(ValueError, match="sum to 1"):
        weights_by_share({"a": 1.0}, {"a": 0.5})
    with pytest.raises(ValueError, match=r"name \['a', 'b'\]"):
        weights_by_share({"a": 1.0, "b": 1.0}, {"a": 1.0})
    for bad in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="zero or not finite"):
            weights_by_share({"a": bad}, {"a": 1.0})


def test_a_run_is_calibrated_after_its_pilot_and_keeps_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="at step 2 or later, when the buffers are full, got 1"):
        lambda_jepa(calibrate=1, buffer=2)
    method = lambda_jepa(calibrate=2, buffer=2)
    assert method.convention()["inv"] == "32.8, to be calibrated"
    with caplog.at_level(logging.INFO, "aotadmm_timm.methods"):
        for step in range(4):
            assert bool(method.calibrated) == (step == 3)
            method(random_views(32, seed=step), step)
    assert "calibrated weights: {'inv':" in caplog.text
    same = lambda_jepa(buffer=2)
    for step in range(2):
        same(random_views(32, seed=step), step)
    expected = weights_by_share(gradient_norms(same, random_views(32, seed=2), step=2), LAMBDA_JEPA_SHARES)
    found = method.convention()
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    resumed = lambda_jepa(calibrate=2, buffer=2)
    resumed.load_state_dict(method.state_dict())
    resumed(random_views(32, seed=4), 4)
    assert resumed.convention() == found
