"""The slicer: a mean over directions and views, whatever its tiles, in little memory, in full precision."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import slicing
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.losses.matching import sorted_match
from aotadmm_timm.losses.slicing import Sliced, sliced
from aotadmm_timm.losses.univariate import anderson_darling, cramer_von_mises, epps_pulley


def value_and_grad(z: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = sliced(z, *args, **kwargs)  # type: ignore[arg-type]
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


def test_mean_over_directions_and_views() -> None:
    """And its gradient, against plain autograd, slice by slice."""
    torch.manual_seed(0)
    z, directions = torch.randn(3, 11, 4, dtype=torch.float64), unit_directions(4, 7, 0, 0).double()
    leaf = z.clone().requires_grad_()
    expected = torch.stack([anderson_darling(view @ a) for view in leaf for a in directions.T]).mean()
    expected.backward()
    value, grad = value_and_grad(z, directions, anderson_darling)
    assert torch.allclose(value, expected.detach(), rtol=1e-12)
    assert torch.allclose(grad, leaf.grad, rtol=1e-10)  # type: ignore[arg-type]
    assert torch.allclose(sliced(z.view(3, 1, 11, 4), directions, anderson_darling), value)


@pytest.mark.parametrize("pairwise", [False, True])
def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch, pairwise: bool) -> None:
    torch.manual_seed(0)
    z, directions = torch.randn(2, 20, 5, dtype=torch.float64), unit_directions(5, 13, 0, 0).double()
    target = torch.randn(20, 5, dtype=torch.float64)
    for statistic, sample in ((epps_pulley, None), (sorted_match, target)):
        whole = value_and_grad(z, directions, statistic, target=sample, pairwise=pairwise)
        with monkeypatch.context() as patch:
            patch.setitem(slicing._TILE, "cpu", 100)
            tiled = value_and_grad(z, directions, statistic, target=sample, pairwise=pairwise)
        for a, b in zip(tiled, whole, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_gradcheck() -> None:
    torch.manual_seed(0)
    z = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: 3 * Sliced(cramer_von_mises, 5)(z, 1), (z,))


def test_keeps_no_more_than_a_gradient() -> None:
    z = torch.randn(64, 8, requires_grad=True)
    nodes, saved = [Sliced(anderson_darling, 128)(z, 0).grad_fn], 0
    while nodes:
        node = nodes.pop()
        saved += sum(tensor.numel() for tensor in getattr(node, "saved_tensors", ()))
        nodes += [parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None]
    assert saved == z.numel()


def test_precision_is_at_least_float32() -> None:
    torch.manual_seed(0)
    z = torch.randn(64, 8, dtype=torch.bfloat16)
    expected = Sliced(cramer_von_mises, 16)(z.float(), 3)
    with torch.autocast("cpu", torch.bfloat16):
        inside = Sliced(cramer_von_mises, 16)(z, 3)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    assert Sliced(cramer_von_mises, 16)(z.double(), 3).dtype == torch.float64


def test_a_second_derivative_is_refused() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="a sliced statistic has a hand-written backward"):
        torch.autograd.grad(Sliced(cramer_von_mises, 8)(z.tanh(), 0), z, create_graph=True)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match=r"got \(3, 4\), \(5, 2\)"):
        sliced(torch.zeros(3, 4), torch.zeros(5, 2), cramer_von_mises)
    with pytest.raises(UserError, match=r"embeddings must be \(..., N, D\), got \(4,\)"):
        Sliced(cramer_von_mises)(torch.zeros(4), 0)
    with pytest.raises(UserError, match=r"at least 2 rows over all processes, got 1 \(z \(3, 1, 4\)\)"):
        Sliced(cramer_von_mises, min_rows=2)(torch.zeros(3, 1, 4), 0)
    with pytest.raises(UserError, match="--num-slices must be at least 1, got 0"):
        Sliced(cramer_von_mises, 0)
