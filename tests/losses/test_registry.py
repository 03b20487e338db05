"""Regularizers by name: what every one of them promises, their arguments, and a user's own."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import REGULARIZERS, Regularizer, build_regularizer, name_of, needs_normalize, sigreg
from aotadmm_timm.losses.directions import draw_directions
from aotadmm_timm.losses.univariate import moments
from aotadmm_timm.theory.objective import normalize_energy


def build(spec: str, **settings: object) -> Regularizer:
    """Even what is refused alone."""
    return build_regularizer(spec, normalize=True, **{"num_slices": 32} | settings)  # type: ignore[arg-type]


def value_and_grad(regularizer: Regularizer, z: Tensor, step: int = 0) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = regularizer(z, step)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


def gaussian(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


HARD = {
    "zero": torch.zeros(2, 16, 8),
    "constant": torch.full((2, 16, 8), 0.3),
    "constant, far": torch.full((2, 16, 8), 1e30),
    "rank one": gaussian(2, 16, 1) * gaussian(8),
    "two rows": gaussian(2, 2, 8),
    "two equal rows": gaussian(2, 1, 8).expand(2, 2, 8),
    "tiny": 1e-20 * gaussian(2, 16, 8),
    "large": 1e8 * gaussian(2, 16, 8),
    "huge": 1e36 * gaussian(2, 16, 8),
    "one huge entry": torch.cat([gaussian(2, 15, 8), torch.full((2, 1, 8), 1e30)], dim=1),
}


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite(name: str, dtype: torch.dtype) -> None:
    """Value and gradient, on hard batches, alone and under bf16 autocast."""
    regularizer = build(name)
    for case, z in HARD.items():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            value, grad = value_and_grad(regularizer, z.to(dtype))
        assert value.isfinite(), case
        assert value.dtype == torch.float32, case
        assert grad.isfinite().all(), case


@pytest.mark.parametrize("name", REGULARIZERS)
def test_precision_is_at_least_float32(name: str) -> None:
    """bf16 embeddings under autocast, and under a bf16 default dtype, are computed as their float32 copies."""
    z = gaussian(2, 24, 6).bfloat16()
    regularizer = build(name)
    expected = regularizer(z.float(), 1)
    with torch.autocast("cpu", torch.bfloat16):
        inside = regularizer(z, 1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        default = build(name)(z, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(inside, expected)
    assert torch.equal(default, expected)
    assert regularizer(z.double(), 1).dtype == torch.float64


@pytest.mark.parametrize("name", REGULARIZERS)
def test_one_test_per_view_and_rows_in_any_order(name: str) -> None:
    """The samples are the rows: their order does not matter, and every view is tested by itself."""
    z = gaussian(2, 24, 6).double() * torch.tensor([1.0, 2.0])[:, None, None]
    regularizer = build(name, seed=3)
    value, grad = value_and_grad(regularizer, z, 5)
    each = torch.stack([regularizer(view, 5) for view in z])
    assert torch.allclose(value, each.mean(), rtol=1e-9)
    assert torch.allclose(regularizer(z[:, None], 5), value, rtol=1e-9)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    permuted, permuted_grad = value_and_grad(regularizer, z[:, order], 5)
    assert torch.allclose(permuted, value, rtol=1e-9)
    assert torch.allclose(permuted_grad, grad[:, order], rtol=1e-7, atol=1e-12)
    features = torch.cat([z[..., 1:], z[..., :1]], -1) + torch.arange(6)
    assert not torch.allclose(regularizer(features, 5), regularizer(features.mT[:, :, :6], 5))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_rows_that_it_needs(name: str) -> None:
    entry, z = REGULARIZERS[name], gaussian(1, 6)
    if entry.rows > 1:
        with pytest.raises(UserError, match=f"needs at least {entry.rows} rows over all processes, got 1"):
            build(name)(z, 0)
    else:
        value, grad = value_and_grad(build(name), z)
        assert value.isfinite()
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", REGULARIZERS)
def test_scale_blind_ones_are_named_and_refused_alone(name: str) -> None:
    z = normalize_energy(gaussian(2, 64, 6).double())
    blind = torch.allclose(build(name)(0.5 * z, 0), build(name)(z, 0), rtol=1e-6)
    assert REGULARIZERS[name].scale_blind == blind
    if blind:
        with pytest.raises(UserError, match=f"'{name}' does not see the scale .* --normalize"):
            build_regularizer(name)
    else:
        build_regularizer(name)


@pytest.mark.parametrize("name", [name for name, entry in REGULARIZERS.items() if not entry.scale_blind])
def test_gaussian_embeddings_are_better_than_collapsed_ones(name: str) -> None:
    """At scale 1 they are better than at 0.2 and 3. What is blind to scale is refused, for it would not pass."""
    z = normalize_energy(gaussian(256, 6))
    z = z.relu() if name == "rdmreg" else z
    regularizer = build(name)
    if not REGULARIZERS[name].needs_normalize:
        assert float(regularizer(z, 0)) < float(regularizer(0.2 * z, 0))
        assert name == "vicreg" or float(regularizer(z, 0)) < float(regularizer(3 * z, 0))
    flat = normalize_energy(z * torch.tensor([1, 1, 1, 0.01, 0.01, 0.01]))
    assert float(regularizer(z, 0)) < float(regularizer(flat, 0))


def test_arguments_settings_and_names() -> None:
    z, a = gaussian(2, 30, 5), draw_directions("orthogonal", 5, 8, 3, 4)
    settings = {"num_slices": 8, "seed": 3, "directions": "orthogonal"}
    assert torch.equal(build_regularizer(**settings)(z, 4), sigreg(z, a))  # type: ignore[arg-type]
    knots = build_regularizer("sigreg(num_knots=9, t_max=2.5)", **settings)  # type: ignore[arg-type]
    assert torch.equal(knots(z, 4), sigreg(z, a, num_knots=9, t_max=2.5))
    sixth = build_regularizer("moments(order=6)", **settings)  # type: ignore[arg-type]
    assert torch.allclose(sixth(z, 4), moments((z @ a).mT, order=6).mean())
    assert name_of(sixth) == "moments(order=6)"
    assert "moments(order=6), 8, directions='orthogonal', seed=3" in repr(sixth)
    assert all(entry.line for entry in REGULARIZERS.values())
    assert [name for name in REGULARIZERS if needs_normalize(name)] == ["coding-rate"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sigregg", r"unknown regularizer 'sigregg' \(nearest known: sigreg\): one of sigreg, epps-pulley, .*MODULE"),
        ("moments(6)", "arguments are NAME=VALUE"),
        ("moments(order=six)", "arguments are NAME=VALUE"),
        ("moments(order=6", r"is NAME or NAME\(argument=value"),
        ("moments(ordr=6)", r"no argument 'ordr' \(nearest known: order\): it takes order"),
        ("watson(order=6)", "no argument 'order': it takes none"),
        ("moments(order=0)", "order must be at least 1, got 0"),
        ("bhep(beta='x')", r"bhep\(beta='x'\)"),
        (":f", "cannot import ''"),
        ("no_such_module_here:f", "cannot import 'no_such_module_here'"),
        ("nowhere/terms.py:f", "there is no file nowhere/terms.py"),
        ("math:pi", "'math' has no function 'pi'"),
    ],
)
def test_what_is_wrong_is_named(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_regularizer(spec)


SOURCE = """
from torch import nn

def spread(z, step):
    return step - z.var()

def settings(z, step, num_slices, *, directions, power=1):
    return num_slices ** power, directions

class Stateful(nn.Module):
    def __init__(self, alpha=1.0, seed=0):
        super().__init__()
        self.alpha, self.seed = alpha, seed

    def forward(self, z, step):
        return self.alpha * z.mean() + self.seed
"""


def test_functions_and_classes_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_terms.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    z = torch.arange(6.0).view(1, 3, 2)
    for place in ("my_terms", "my_terms.py", str(tmp_path / "my_terms.py")):
        assert float(build_regularizer(f"{place}:spread")(z, 4)) == pytest.approx(0.5)
        assert float(build_regularizer(f"{place}:Stateful")(z, 0)) == pytest.approx(2.5)
    assert name_of(build_regularizer("my_terms:spread")) == "my_terms:spread"
    given = build_regularizer("my_terms:Stateful(alpha=2)", seed=7)
    assert float(given(z, 0)) == pytest.approx(12.0)  # alpha and the seed reached it
    assert name_of(given) == "my_terms:Stateful(alpha=2)"
    assert build_regularizer("my_terms:settings(power=2)", num_slices=9, directions="sobol")(z, 0) == (81, "sobol")
    with pytest.raises(UserError, match=r"no function 'spred', did you mean 'spread'\?"):
        build_regularizer("my_terms:spred")
    with pytest.raises(UserError, match=r"no argument 'powr' \(nearest known: power\)"):
        build_regularizer("my_terms:settings(powr=2)")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(z): ...", r"'bad_terms:f': must be called as f\(z, step\), takes \(z\)"),
        ("def f(z, step, more): ...", "missing a required argument: 'more'"),
        ("class f:\n    def __init__(self, n): ...", "f': cannot be made with {}"),
        ("import torch\nclass f(torch.nn.Module):\n    def forward(self, z): ...", "must be called as"),
        ("1 / 0", r"cannot import 'bad_terms' \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_what_could_not_be_called_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "bad_terms.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "bad_terms", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=message):
        build_regularizer("bad_terms:f")
    sys.modules.pop("bad_terms", None)
