"""LeJEPA against its formula written out by hand, for every option."""

import pytest
import torch
from methods.backbones import Linear, random_views, tiny_vit
from torch import Tensor

from aotadmm_timm.losses import SACReg, SIGReg, sigreg
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.methods import BackboneTerms, LeJEPA
from aotadmm_timm.methods.multi_view import backbone_features
from aotadmm_timm.theory.objective import coding_rate_regularizer

STEP = 3


def embeddings(method: LeJEPA) -> Tensor:
    h = backbone_features(method.backbone, random_views(8))
    return method.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2])


def regularizer(z: Tensor, step: int) -> Tensor:
    return (z * step).square().mean()


@pytest.mark.parametrize("lamb", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("form", "target"), [("convex", "global"), ("sum", "global"), ("convex", "all")])
def test_hand_formula_on_three_unequal_views(lamb: float, form: str, target: str) -> None:
    method = LeJEPA(Linear(), lamb=lamb, form=form, target=target, projector=(8, 4), num_slices=16)  # type: ignore[arg-type]
    out = method(random_views(8), STEP)
    z = embeddings(method)
    mean = (z[0] + z[1]) / 2 if target == "global" else (z[0] + z[1] + z[2]) / 3
    inv = sum(((view - mean) ** 2).mean() for view in z) / 3
    directions = unit_directions(4, 16, 0, STEP)
    reg = sum(sigreg(view, directions) for view in z) / 3
    expected = (1 - lamb) * inv + lamb * reg if form == "convex" else inv + lamb * reg
    assert torch.allclose(out.loss, expected, rtol=1e-5)
    assert torch.allclose(out.terms["inv"], inv, rtol=1e-5)
    assert torch.allclose(out.terms["sigreg"], reg, rtol=1e-5)


@pytest.mark.parametrize("lamb", [0.02, 0.05, 0.5])
def test_the_two_forms_differ_by_the_stated_factors(lamb: float) -> None:
    """convex(lamb) = (1 - lamb) sum(lamb / (1 - lamb))"""
    convex = LeJEPA(Linear(), lamb=lamb, projector=(8, 4), num_slices=16)
    total = LeJEPA(Linear(), lamb=lamb / (1 - lamb), form="sum", projector=(8, 4), num_slices=16)
    total.load_state_dict(convex.state_dict())
    views = random_views(8)
    assert torch.allclose(convex(views, STEP).loss, (1 - lamb) * total(views, STEP).loss, rtol=1e-5)


def test_pooled_views_are_one_test() -> None:
    per_view = LeJEPA(Linear(), projector=(), num_slices=16)
    pooled = LeJEPA(Linear(), projector=(), num_slices=16, pool_views=True)
    z = embeddings(per_view)
    assert torch.allclose(pooled(random_views(8), STEP).terms["sigreg"], SIGReg(16)(z.flatten(0, 1), STEP))
    # the factor between the two when the views coincide is their number
    same = random_views(8, 2, 0)
    same = same._replace(global_views=same.global_views[:1].expand(4, -1, -1, -1, -1))
    ratio = pooled(same, STEP).terms["sigreg"] / per_view(same, STEP).terms["sigreg"]
    assert float(ratio) == pytest.approx(4, rel=1e-4)


def test_no_projector() -> None:
    method = LeJEPA(Linear(), projector=(), num_slices=16)
    h = backbone_features(method.backbone, random_views(8))
    assert torch.allclose(method(random_views(8), STEP).terms["sigreg"], SIGReg(16)(h, STEP))
    assert method.convention()["projector"] == "none"


def test_backbone_terms_are_added_on_centres_of_global_views() -> None:
    plain = LeJEPA(Linear(), projector=(8, 4), num_slices=16)
    beside = BackboneTerms(6, backbone_sacreg=0.7, backbone_sigreg=0.3, num_slices=16)
    plus = LeJEPA(Linear(), projector=(8, 4), num_slices=16, backbone_terms=beside)
    plus.load_state_dict(plain.state_dict(), strict=False)
    views = random_views(8)
    before, after = plain(views, STEP), plus(views, STEP)
    h = backbone_features(plus.backbone, views)[:2]
    centers = torch.nn.functional.layer_norm(h, (6,)).mean(0)
    sac = SACReg(2, buffer_batches=3, stream=1)(centers, STEP)
    sig = SIGReg(16)(centers, STEP)
    assert torch.allclose(after.terms["backbone_sacreg"], sac)
    assert torch.allclose(after.terms["backbone_sigreg"], sig)
    assert torch.allclose(after.loss, before.loss + 0.7 * sac + 0.3 * sig, rtol=1e-5)
    assert {"tap_zeros", "tap_max"} <= set(after.terms)
    assert not {"tap_zeros", "backbone_sacreg", "backbone_sigreg"} & set(before.terms)


def test_users_regularizer_replaces_sigreg() -> None:
    method = LeJEPA(Linear(), projector=(8, 4), regularizer=regularizer, lamb=0.5)
    out = method(random_views(8), STEP)
    expected = regularizer(embeddings(method), STEP)
    assert torch.allclose(out.terms["regularizer"], expected, rtol=1e-5)
    assert torch.allclose(out.loss, (out.terms["inv"] + expected) / 2, rtol=1e-5)
    assert "sigreg" not in out.terms
    assert method.convention()["regularizer"] == f"{__name__}:regularizer"


def test_only_the_loss_has_a_gradient() -> None:
    method = LeJEPA(tiny_vit(), projector=(8, 4), backbone_terms=BackboneTerms(24, backbone_sacreg=1.0))
    with torch.autocast("cpu", torch.bfloat16):
        out = method(random_views(8), STEP)
    assert not any(value.requires_grad for value in (*out.terms.values(), out.features, out.embeddings))
    assert out.loss.dtype == torch.float32
    assert out.features.shape == (8, 24)
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_convention_states_every_choice() -> None:
    assert LeJEPA(Linear(), projector=(8, 4)).convention() == {
        "method": "LeJEPA",
        "form": "convex",
        "target": "global",
        "pooling": "per view",
        "regularizer": "SIGReg",
        "lamb": 0.05,
        "embeddings": "as they are",
        "projector": "8-4",
        "backbone_sacreg": 0.0,
        "backbone_sigreg": 0.0,
        "tap": "none",
    }
    other = LeJEPA(
        Linear(),
        form="sum",
        target="all",
        pool_views=True,
        backbone_terms=BackboneTerms(6, backbone_sacreg=2.0, tap="features"),
    ).convention()
    assert (other["form"], other["target"], other["pooling"], other["tap"]) == ("sum", "all", "all views", "features")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lamb": 1.5}, r"in \[0, 1\] in the convex form.*got 1.5"),
        ({"lamb": -0.1, "form": "sum"}, "got -0.1"),
        ({"form": "product"}, "got 'product'"),
        ({"target": "local"}, "'local'"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeJEPA(Linear(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"), [({"backbone_sacreg": -1.0}, "got -1.0"), ({"tap": "cls"}, "got 'cls'")]
)
def test_bad_options_of_the_backbones_terms_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackboneTerms(6, **options)  # type: ignore[arg-type]


def test_theorem_1_conditions_reach_both_terms() -> None:
    """With `normalize` embeddings are centred with tr Sigma = D per view, and both terms see them so."""
    method = LeJEPA(Linear(), lamb=0.3, projector=(8, 4), regularizer="coding-rate")
    out = method(random_views(8), STEP)
    raw = embeddings(method)
    z = raw - raw.mean(1, keepdim=True)
    z = z * (4 / z.square().sum(-1).mean(-1)).sqrt()[:, None, None]
    assert torch.allclose(out.embeddings, z, rtol=1e-4, atol=1e-5)
    inv = sum(((view - (z[0] + z[1]) / 2) ** 2).mean() for view in z) / 3
    reg = sum(coding_rate_regularizer(view) for view in z) / 3
    assert torch.allclose(out.loss, 0.7 * inv + 0.3 * reg, rtol=1e-4)
    assert method.convention()["embeddings"] == "centered, tr Sigma = D"
    assert method.convention()["regularizer"] == "coding-rate"
