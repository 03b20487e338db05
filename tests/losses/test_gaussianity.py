"""SIGReg against its reference values, a literal formula, closed forms and its symmetries."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aotadmm_timm.losses import SIGReg, gaussianity, sigreg
from aotadmm_timm.losses.directions import unit_directions

REFERENCE = load_file(Path(__file__).parent / "data" / "sigreg.safetensors")


def literal(z: Tensor, directions: Tensor, num_knots: int = 17, t_max: float = 3.0) -> float:
    """The published formula, knot by knot, for (N, D)."""
    x, spacing, total = z @ directions, t_max / (num_knots - 1), 0.0
    for j in range(num_knots):
        t = j * spacing
        phi = math.exp(-t * t / 2)
        weight = phi * spacing * (1 if j in (0, num_knots - 1) else 2)
        gap = ((t * x).cos().mean(0) - phi) ** 2 + (t * x).sin().mean(0) ** 2
        total += weight * gap.mean()
    return len(z) * total


def value_and_grad(z: Tensor, directions: Tensor, **kwargs: float) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = sigreg(z, directions, **kwargs)  # type: ignore[arg-type]
    value.backward()
    return value.detach(), z.grad  # type: ignore[return-value]


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("case", range(3))
def test_reference_values_and_gradients(case: int) -> None:
    value, grad = value_and_grad(REFERENCE[f"{case}.z"], REFERENCE[f"{case}.directions"])
    assert relative(value, REFERENCE[f"{case}.value"]) < 1e-5
    assert relative(grad, REFERENCE[f"{case}.grad"]) < 1e-5


@pytest.mark.parametrize("num_knots", [2, 3, 4, 8, 17, 33])
def test_literal_formula(num_knots: int) -> None:
    torch.manual_seed(num_knots)
    z, directions = torch.randn(3, 9, 4, dtype=torch.float64), unit_directions(4, 7, 0, 0).double()
    expected = sum(literal(view, directions, num_knots, 2.5) for view in z) / 3
    assert torch.allclose(sigreg(z, directions, num_knots=num_knots, t_max=2.5), torch.as_tensor(expected), rtol=1e-12)


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    z, directions = torch.randn(2, 50, 8, dtype=torch.float64), unit_directions(8, 23, 0, 0).double()
    whole = value_and_grad(z, directions)
    monkeypatch.setitem(gaussianity._TILE, "cpu", 150)  # 3 rows; a product of 12 slices, 24 rows
    for a, b in zip(value_and_grad(z, directions), whole, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_float32_gradient_near_the_optimum() -> None:
    torch.manual_seed(0)
    z, directions = torch.randn(2048, 32), unit_directions(32, 64, 0, 0)
    exact = z.double().requires_grad_()
    literal(exact, directions.double()).backward()  # type: ignore[attr-defined]
    assert relative(value_and_grad(z, directions)[1], exact.grad) < 1e-5  # type: ignore[arg-type]


def test_gradcheck() -> None:
    torch.manual_seed(0)
    z = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: sigreg(z, unit_directions(3, 5, 0, 0)), (z,))


def test_closed_forms() -> None:
    # a two-point batch on one axis has the characteristic function cos(t a)
    t = 3 * torch.arange(17, dtype=torch.float64) / 16
    phi = torch.exp(-t.square() / 2)
    weight = phi * 3 / 8
    weight[[0, -1]] /= 2
    z = torch.tensor([[1.3], [-1.3]], dtype=torch.float64)
    expected = 2 * (weight * ((1.3 * t).cos() - phi).square()).sum()
    assert torch.allclose(sigreg(z, torch.ones(1, 1)), expected, rtol=1e-12)
    assert float(sigreg(torch.zeros(512, 4), unit_directions(4, 3, 0, 0))) == pytest.approx(205.85, abs=5e-3)


@pytest.mark.parametrize(("scale", "expected", "spread"), [(1.0, 1.0525, 0.03), (2.0, 122.54, 1.0)])
def test_expectation_on_gaussians(scale: float, expected: float, spread: float) -> None:
    torch.manual_seed(0)
    z = scale * torch.randn(20, 512, 64)
    assert float(sigreg(z, unit_directions(64, 256, 0, 0))) == pytest.approx(expected, abs=spread)


def test_invariances() -> None:
    torch.manual_seed(0)
    z, directions = torch.randn(3, 20, 6, dtype=torch.float64), unit_directions(6, 9, 0, 0).double()
    value, grad = value_and_grad(z, directions)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    rotated, rotated_grad = value_and_grad(z @ rotation, rotation.T @ directions)
    assert torch.allclose(rotated, value, rtol=1e-10)
    assert torch.allclose(rotated_grad, grad @ rotation, atol=1e-12)
    order = torch.randperm(20)
    permuted, permuted_grad = value_and_grad(z[:, order], directions[:, torch.randperm(9)])
    assert torch.allclose(permuted, value, rtol=1e-12)
    assert torch.allclose(permuted_grad, grad[:, order], atol=1e-14)
    assert torch.allclose(sigreg(-z, directions), value, rtol=1e-12)


def test_views_are_averaged_and_the_batch_scales() -> None:
    torch.manual_seed(0)
    z, directions = torch.randn(4, 16, 5, dtype=torch.float64), unit_directions(5, 8, 0, 0)
    each = torch.stack([sigreg(view, directions) for view in z])
    assert torch.allclose(sigreg(z, directions), each.mean())
    assert torch.allclose(sigreg(z.view(2, 2, 16, 5), directions), each.mean())
    assert torch.allclose(sigreg(torch.cat([z[0], z[0]]), directions), 2 * each[0])
    # pooled is another objective: V times the value when the views coincide
    same = z[:1].expand(4, 16, 5)
    assert torch.allclose(sigreg(same.flatten(0, 1), directions), 4 * sigreg(same, directions))


def test_collapse_has_a_vanishing_gradient() -> None:
    directions = unit_directions(16, 32, 0, 0)
    value, grad = value_and_grad(torch.zeros(128, 16), directions)
    assert float(value) == pytest.approx(0.40205 * 128, rel=1e-4)
    assert float(grad.abs().max()) == 0
    torch.manual_seed(0)
    z = torch.randn(128, 16)
    norms = [float(value_and_grad(scale * z, directions)[1].norm()) for scale in (1e-4, 1e-3, 0.3)]
    assert norms[1] == pytest.approx(10 * norms[0], rel=0.05)  # linear in the scale: it escapes, slowly
    assert norms[2] > 50 * norms[1]


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e8, 1e36])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (3, 5, 2)])
def test_finite(shape: tuple[int, ...], scale: float) -> None:
    torch.manual_seed(0)
    for z in (torch.randn(shape) * scale, torch.full(shape, scale)):
        value, grad = value_and_grad(z, unit_directions(shape[-1], 4, 0, 0))
        assert value.isfinite()
        assert grad.isfinite().all()


def test_precision_is_at_least_float32() -> None:
    torch.manual_seed(0)
    z = torch.randn(64, 8, dtype=torch.bfloat16)
    expected = SIGReg(16)(z.float(), 3)
    with torch.autocast("cpu", torch.bfloat16):
        inside = SIGReg(16)(z, 3)
    torch.set_default_dtype(torch.bfloat16)
    try:
        default, leaf = SIGReg(16)(z, 3), z.clone().requires_grad_()
        SIGReg(16)(leaf, 3).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    for value in (inside, default):
        assert value.dtype == torch.float32
        assert torch.equal(value, expected)
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.bfloat16
    assert SIGReg(16)(z.double(), 3).dtype == torch.float64


def test_slices_depend_on_seed_and_step_alone() -> None:
    torch.manual_seed(0)
    z = torch.randn(32, 8)
    first, state = SIGReg(16, seed=5)(z, 7), torch.get_rng_state()
    torch.manual_seed(99)
    assert torch.equal(SIGReg(16, seed=5)(z, 7), first)
    torch.manual_seed(0)
    torch.randn(32, 8)
    assert torch.equal(torch.get_rng_state(), state)  # the global stream is left alone
    others = [SIGReg(16, seed=s)(z, t) for s, t in ((5, 8), (6, 7), (7, 5), (5, 7 + 2**32))]
    assert len({float(v) for v in [first, *others]}) == 5
    assert torch.allclose(unit_directions(8, 1000, 0, 0).norm(dim=0), torch.ones(1000))


def test_keeps_no_more_than_a_gradient() -> None:
    saved: list[int] = []
    z = torch.randn(64, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        SIGReg(128)(z, 0)
    assert 0 < sum(saved) <= 2 * z.numel()


@pytest.mark.parametrize(
    ("z", "directions", "message"),
    [
        (torch.zeros(4), torch.zeros(4, 2), r"got \(4,\) and \(4, 2\)"),
        (torch.zeros(3, 4), torch.zeros(5, 2), r"got \(3, 4\) and \(5, 2\)"),
        (torch.zeros(0, 4), torch.zeros(4, 2), r"at least one row, got z of shape \(0, 4\)"),
        (torch.zeros(3, 4), torch.zeros(4, 2, requires_grad=True), "detach"),
    ],
)
def test_bad_input_is_named(z: Tensor, directions: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sigreg(z, directions)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="num_slices must be at least 1, got 0"):
        SIGReg(0)
    with pytest.raises(ValueError, match=r"num_knots >= 2 and t_max > 0, got 1 and 3.0"):
        SIGReg(4, num_knots=1)(torch.zeros(3, 4), 0)


def test_a_second_derivative_is_refused() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    directions = unit_directions(4, 8, 0, 0)
    with pytest.raises(RuntimeError, match="SIGReg has a hand-written backward"):
        torch.autograd.grad(sigreg(z.tanh(), directions), z, create_graph=True)
