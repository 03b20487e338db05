"""Translated lambdas against gradients: parallel where an equivalent is claimed, and for no lambda where none is."""

import itertools
from functools import cache

import pytest
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import SIGReg, invariance, pairwise_invariance, sacreg, sigreg
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.theory.conventions import (
    CONVENTIONS,
    OURS,
    Convention,
    Setting,
    covariance_weight,
    find,
    our_flags,
    translate,
    view_gradient,
)
from aotadmm_timm.theory.expansion import covariance_constant
from aotadmm_timm.theory.public_codes import Quadrature
from aotadmm_timm.theory.restated import invariance_term, regularizer_term, restated_loss, spectral

BATCH, DIM = 24, 5
LAMBDAS = {"convex": 0.05, "sum": 0.4, "weights": 1.0}


def embeddings(num_views: int, seed: int = 0) -> Tensor:
    """(V, B, D): views of an image are near each other, far from Gaussian, and each view has its own mean."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(BATCH, DIM, generator=generator, dtype=torch.float64) * 3 - 1
    noise = 0.4 * torch.randn(num_views, BATCH, DIM, generator=generator, dtype=torch.float64)
    return images + noise + 0.2 * torch.arange(num_views, dtype=torch.float64)[:, None, None]


DIRECTIONS = unit_directions(DIM, 7, 0, 0).double()


@cache
def gradient(convention: Convention, part: str, views: tuple[int, int], processes: int) -> Tensor:
    """Of the invariance, of the regularizer, or of the loss at the lambda of `LAMBDAS`."""
    z = embeddings(sum(views)).requires_grad_()
    if part == "inv":
        value = invariance_term(z, convention, num_global=views[0])
    elif part == "reg":
        value = regularizer_term(z, convention, DIRECTIONS, num_global=views[0], processes=processes)
    else:
        lamb = LAMBDAS[convention.form]
        value = restated_loss(z, lamb, convention, DIRECTIONS, num_global=views[0], processes=processes)
    (grad,) = torch.autograd.grad(value, z)
    return grad.flatten()


def out_of_reach(source: Tensor, inv: Tensor, reg: Tensor) -> float:
    """How much of the source's gradient no positive combination of the target's two gradients can make (0 to 1)."""
    weights = torch.linalg.lstsq(torch.stack([inv, reg], 1), source[:, None]).solution[:, 0]
    candidates = [weights] if (weights >= 0).all() else []
    for only in (inv, reg):
        candidates.append(torch.where(torch.tensor([only is inv, only is reg]), (only @ source) / (only @ only), 0.0))
    fits = [w[0] * inv + w[1] * reg for w in candidates if (w >= 0).all()]
    return min(float((source - fit).norm() / source.norm()) for fit in fits) if fits else 1.0


CASES = [(views, processes) for views in ((2, 3), (3, 0), (2, 0), (1, 1), (1, 2)) for processes in (1, 2)]


@pytest.mark.parametrize(("views", "processes"), CASES)
def test_gradients_agree_with_every_translation(views: tuple[int, int], processes: int) -> None:
    variants = {our_flags(c)[0].name: our_flags(c)[0] for c in CONVENTIONS.values()}
    pool = [*CONVENTIONS.values(), *(v for name, v in variants.items() if name not in CONVENTIONS)]
    assert len(pool) == len(CONVENTIONS) + 2  # ours with --target all, ours with --pool-views
    counts = {"exact": 0, "read": 0, "near": 0, "none": 0}
    for source, target in itertools.permutations(pool, 2):
        if "local" in (source.tested, target.tested, source.predicted, target.predicted) and not views[1]:
            assert translate(LAMBDAS[source.form], source, target, BATCH, views, DIM).lamb is None
            continue
        found = translate(LAMBDAS[source.form], source, target, BATCH, views, DIM, processes=processes)
        parts = {part: gradient(source, part, views, processes) for part in ("inv", "reg")}
        left = parts["inv"] + parts["reg"] if source.form == "weights" else gradient(source, "loss", views, processes)
        inv, reg = (gradient(target, part, views, processes) for part in ("inv", "reg"))
        pair = f"{source.name} -> {target.name}: {found}"
        if found.lamb is None or found.lr_factor is None:
            counts["none"] += 1
            assert out_of_reach(left, inv, reg) > 1e-3, pair
            continue
        kept = 1 - found.lamb if target.form == "convex" else 1.0
        error = float((left - found.lr_factor * (kept * inv + found.lamb * reg)).norm() / left.norm())
        if source.quadrature == target.quadrature:  # where a source is silent, our reading of it is compared
            counts["exact" if found.exact else "read"] += 1
            assert error < 1e-9, pair
        else:  # another rule for the same integral, and really another
            counts["near"] += 1
            assert 1e-7 < error < 0.05, pair
    assert min(counts.values()) > 0, counts


def test_ours_is_what_the_package_trains_with() -> None:
    z = embeddings(5)
    for target, pooled in itertools.product(("global", "all"), (False, True)):
        convention = Convention("c", "here", target=target, pooling="pooled" if pooled else "per view")  # type: ignore[arg-type]
        center = (z[:2] if target == "global" else z).mean(0)
        rows = z.flatten(0, 1) if pooled else z
        expected = 0.95 * invariance(z, center) + 0.05 * sigreg(rows, DIRECTIONS)
        torch.testing.assert_close(restated_loss(z, 0.05, convention, DIRECTIONS, num_global=2), expected)
    assert OURS.quadrature == Quadrature(17, 0, SIGReg().t_max)
    assert OURS.slices == SIGReg().num_slices
    pairs = Convention("p", "here", target="pairs")
    torch.testing.assert_close(invariance_term(z, pairs, num_global=2), pairwise_invariance(z))


def test_the_papers_integral_is_ours_with_nine_knots_to_five() -> None:
    z = embeddings(3)
    value = regularizer_term(z, find("lejepa-paper"), DIRECTIONS, num_global=1)
    torch.testing.assert_close(sigreg(z, DIRECTIONS, num_knots=9, t_max=5.0), value)


def test_the_authors_sacreg_is_the_papers_but_for_n_and_eps() -> None:
    centers = embeddings(1)[0]
    n, eps = len(centers), 1e-4
    mean = centers.mean(0)
    # with 1 / n the covariance of these is that of the centers with 1 / (n - 1)
    scaled = mean + (centers - mean) * (n / (n - 1)) ** 0.5
    expected = (sacreg(scaled, eps=eps) + DIM * eps / 2) / DIM  # the authors' trace has eps, too
    torch.testing.assert_close(spectral(centers[None], eps=eps)[0], expected)


@pytest.mark.parametrize("target_gradient", [True, False])
@pytest.mark.parametrize("predicted", ["all", "local"])
@pytest.mark.parametrize("target", ["global", "all", "pairs"])
def test_view_gradients_are_those_of_autograd(target: str, predicted: str, target_gradient: bool) -> None:
    convention = Convention(
        "c",
        "here",
        target=target,  # type: ignore[arg-type]
        predicted=predicted,  # type: ignore[arg-type]
        target_gradient=target_gradient,
    )
    z = embeddings(5).requires_grad_()
    (grad,) = torch.autograd.grad(invariance_term(z, convention, num_global=2), z)
    matrix = view_gradient(convention, Setting(BATCH, 2, 3, DIM))
    assert matrix is not None
    expected = torch.einsum("vw,wbd->vbd", torch.from_numpy(matrix), z.detach()) / (BATCH * DIM)
    torch.testing.assert_close(grad, expected)


def test_numbers_by_hand() -> None:
    # sum form, pooled: ours with --pool-views differs in the form only
    found = translate(0.02, "stable-pretraining", our_flags(find("stable-pretraining"))[0], 256, (2, 6), 512)
    assert found.exact
    assert (found.lamb, found.lr_factor) == pytest.approx((0.02 / 1.02, 1.02))
    # no factor N, and |z1 - z2|^2 is four times the mean distance of two views to their mean
    found = translate(10, "eb_jepa", OURS, 256, 2, 128)
    odds = 10 / 256 / 4
    assert found.lamb == pytest.approx(odds / (1 + odds), rel=1e-3)
    # a sum over D dimensions against their mean
    found = translate(0.05, "lejepa-equation", "lejepa-paper", 256, (2, 8), 64)
    assert found.exact
    assert found.lamb == pytest.approx(0.05 / (0.05 + 0.95 * 64))
    # there and back
    back = translate(found.lamb or 0, "lejepa-paper", "lejepa-equation", 256, (2, 8), 64)
    assert back.lamb == pytest.approx(0.05)
    assert (back.lr_factor or 0) * (found.lr_factor or 0) == pytest.approx(1)
    # processes: the same rows tested apart are another test, and N is a process's
    assert translate(0.05, "lightly", OURS, 256, (2, 6), 64).lamb == pytest.approx(0.05)
    assert translate(0.05, "lightly", OURS, 256, (2, 6), 64, processes=4).lamb is None
    # all weight on the regularizer: nothing in the sum form
    assert translate(1.0, "lightly", "lejepa-library", 256, (2, 6), 64).lamb == 1
    aot = translate(1.0, OURS, "aot-admm", 256, (2, 6), 64)
    assert aot.lamb is None
    assert "sum form" in aot.reasons[-1]
    assert translate(0.3, "visreg", "visreg", 8, 2, 4).lamb == 0.3


def test_the_constant_of_the_nearest_factor() -> None:
    assert covariance_weight(Quadrature(17, 0, 3)) == pytest.approx(covariance_constant())
    assert covariance_weight(Quadrature(4001, -12, 12)) == pytest.approx(0.1206, abs=2e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.05, "lightli", OURS, 8, 2, 4), "nearest known: lightly"),
        ((1.5, "lightly", OURS, 8, 2, 4), r"in \[0, 1\]"),
        ((-1, "eb_jepa", OURS, 8, 2, 4), "not negative"),
        ((float("nan"), "eb_jepa", OURS, 8, 2, 4), "not negative"),
        ((0.05, "lightly", OURS, 8, 1, 4), "one view"),
        ((0.05, "lightly", OURS, 0, 2, 4), "positive"),
    ],
)
def test_bad_input(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate(*arguments)
    with pytest.raises(UserError, match="does not divide"):
        translate(0.05, "lightly", OURS, 9, 2, 4, processes=2)
    with pytest.raises(ValueError, match="weights, no lambda"):
        restated_loss(embeddings(2), 0.1, find("lambda-jepa"), DIRECTIONS, num_global=2)
