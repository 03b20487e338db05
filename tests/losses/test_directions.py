"""Directions: unit length, uniform, a function of (seed, step), and what each kind promises."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import DIRECTIONS, SIGReg
from aotadmm_timm.losses.directions import draw_directions, unit_directions


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_unit_length_and_a_function_of_seed_and_step(kind: str) -> None:
    state = torch.get_rng_state()
    a = draw_directions(kind, 6, 40, 3, 5)
    assert a.shape == (6, 40)
    assert torch.allclose(a.norm(dim=0), torch.ones(40))
    assert torch.equal(a, draw_directions(kind, 6, 40, 3, 5))
    assert torch.equal(torch.get_rng_state(), state)
    others = [draw_directions(kind, 6, 40, *key) for key in ((3, 6), (4, 5), (3, 5 + 2**32))]
    assert all(not torch.allclose(a, other, atol=0.1) for other in others)


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_each_direction_is_uniform_on_the_sphere(kind: str) -> None:
    """Over the steps, the first two moments of any one column; a QR without its signs fixed has a mean."""
    draws = torch.stack([draw_directions(kind, 3, 5, 0, step) for step in range(2000)])
    for column in (0, 2, 4):
        a = draws[:, :, column]
        assert float(a.mean(0).abs().max()) < 0.05
        assert torch.allclose(a.T @ a / len(a), torch.eye(3) / 3, atol=0.03)


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("dim", [1, 2])
def test_no_direction_is_zero_under_a_bf16_default(kind: str, dim: int) -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        a = draw_directions(kind, dim, 2000, 0, 0)
        value = SIGReg(64, directions=kind)(torch.randn(9, dim), 0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert a.dtype == torch.float32
    assert torch.allclose(a.norm(dim=0), torch.ones(2000))
    assert value.isfinite()


def test_orthogonal_blocks() -> None:
    a = draw_directions("orthogonal", 8, 20, 0, 0)
    for block in (a[:, :8], a[:, 8:16], a[:, 16:]):
        assert torch.allclose(block.T @ block, torch.eye(block.shape[1]), atol=1e-6)
    assert float((a[:, :8].T @ a[:, 8:16]).abs().max()) > 0.1
    wide = draw_directions("orthogonal", 50, 6, 0, 0)
    assert torch.allclose(wide.T @ wide, torch.eye(6), atol=1e-6)


def spread(kind: str, function: str) -> float:
    """Standard deviation over steps of a mean over 64 directions in 4 dimensions."""

    def mean(a: Tensor) -> float:
        return float((a[0] > 0.3).float().mean() if function == "cap" else (a[0] ** 4).mean())

    return float(torch.tensor([mean(draw_directions(kind, 4, 64, 0, step)) for step in range(200)]).std())


@pytest.mark.parametrize("function", ["cap", "fourth power"])
def test_sobol_directions_are_more_even(function: str) -> None:
    assert spread("sobol", function) < 0.6 * spread("iid", function)


def test_iid_directions_are_what_they_were() -> None:
    z = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draw_directions("iid", 8, 16, 5, 7), unit_directions(8, 16, 5, 7))
    assert torch.equal(SIGReg(16, seed=5, directions="iid")(z, 7), SIGReg(16, seed=5)(z, 7))
    values = {float(SIGReg(16, seed=5, directions=kind)(z, 7)) for kind in DIRECTIONS}
    assert len(values) == 3  # none of them is accepted and ignored


def test_bad_input_is_named() -> None:
    with pytest.raises(
        UserError, match=r"--directions is one of iid, orthogonal, sobol, got 'sobel' \(nearest .* sobol"
    ):
        SIGReg(4, directions="sobel")
    with pytest.raises(UserError, match="up to 21201 dimensions, got 30000"):
        draw_directions("sobol", 30000, 4, 0, 0)
