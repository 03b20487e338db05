"""SACReg against closed forms, its bounds and its floors; slices and the ring buffer."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from aotadmm_timm.losses import SACReg, sacreg
from aotadmm_timm.losses.directions import orthonormal_slice


def whitened(n: int, d: int) -> Tensor:
    """Rows with zero mean and covariance (1/n) I exactly, up to rounding."""
    z = torch.randn(n, d, dtype=torch.float64)
    z = z - z.mean(0)
    return n**0.5 * torch.linalg.qr(z)[0]


def test_closed_form() -> None:
    torch.manual_seed(0)
    variances, mean, eps = torch.tensor([0.25, 1.0, 9.0], dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5]), 1e-4
    r = whitened(40, 3) * variances.sqrt() + mean
    expected = (mean.double().square() + variances - (variances + eps).log() - 1).sum() / 2
    assert torch.allclose(sacreg(r), expected, rtol=1e-10)
    assert torch.allclose(
        sacreg(r, eps=0.0), (expected + (variances + eps).log().sum() / 2 - variances.log().sum() / 2)
    )


def test_minimum_at_zero_mean_and_identity() -> None:
    torch.manual_seed(0)
    r = whitened(64, 8)
    assert float(sacreg(r, eps=0.0)) == pytest.approx(0, abs=1e-10)
    leaf = r.clone().requires_grad_()
    sacreg(leaf, eps=0.0).backward()
    assert float(leaf.grad.abs().max()) < 1e-12  # type: ignore[union-attr]
    for other in (1.1 * r, 0.9 * r, r + 0.1, r * torch.linspace(0.8, 1.2, 8)):
        assert sacreg(other, eps=0.0) > 1e-3
    assert float(sacreg((1 - 1e-4) ** 0.5 * r)) == pytest.approx(-8e-4 / 2, rel=1e-3)  # the least value with eps


@pytest.mark.parametrize(("n", "d", "floor"), [(512, 128, 0.070), (1024, 256, 0.069), (128, 128, 0.52)])
def test_floor_on_gaussian_centres(n: int, d: int, floor: float) -> None:
    torch.manual_seed(0)
    assert float(sacreg(torch.randn(n, d))) / d == pytest.approx(floor, abs=0.003)


def test_collapse() -> None:
    assert float(sacreg(torch.zeros(64, 16))) / 16 == pytest.approx(4.105, abs=1e-3)
    torch.manual_seed(0)
    leaf = (1e-3 * torch.randn(64, 16)).requires_grad_()
    sacreg(leaf).backward()
    # it pushes outwards, and hard: the way SIGReg does not
    assert float((leaf.detach() * leaf.grad).sum()) < 0  # type: ignore[operator]
    assert float(leaf.grad.norm()) > 0.1  # type: ignore[union-attr]


def test_gradcheck_and_invariances() -> None:
    torch.manual_seed(0)
    r = torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sacreg, (r,))
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    for same in (r @ rotation, r[torch.randperm(12)], -r, torch.cat([r, r])):
        assert torch.allclose(sacreg(same), sacreg(r), rtol=1e-12)


def test_slices_approach_the_full_value_from_below() -> None:
    torch.manual_seed(0)
    r = torch.randn(400, 12) * torch.logspace(-1.5, 0.5, 12)
    averages = []
    for width in (1, 3, 6, 9, 12):
        term = SACReg(width)
        averages.append(sum(float(term(r, step)) for step in range(200)) / 200)
    assert all(a < b for a, b in pairwise(averages))
    assert averages[-1] == pytest.approx(float(sacreg(r)) / 12, rel=1e-5)
    # mean and total variance are preserved in expectation, so only the determinant separates them
    assert averages[0] > 0


def test_slices_are_orthonormal_reproducible_and_independent() -> None:
    basis = orthonormal_slice(24, 8, seed=3, step=5, stream=0)
    assert torch.allclose(basis.T @ basis, torch.eye(8), atol=1e-6)
    assert torch.equal(basis, orthonormal_slice(24, 8, seed=3, step=5, stream=0))
    for seed, step, stream in ((3, 6, 0), (4, 5, 0), (3, 5, 1)):
        other = orthonormal_slice(24, 8, seed=seed, step=step, stream=stream)
        # the overlap of two random 8-dimensional subspaces of 24 dimensions: 8 * 8 / 24 = 2.7, the same one: 8
        assert float((basis.T @ other).square().sum()) < 5


def test_slice_by_hand() -> None:
    torch.manual_seed(0)
    r = torch.randn(50, 10, dtype=torch.float64)
    basis = orthonormal_slice(10, 4, seed=2, step=9, stream=1).double()
    assert torch.allclose(SACReg(4, seed=2, stream=1)(r, 9), sacreg(r @ basis) / 4)


def test_ring_buffer() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(12, 6, requires_grad=True) for _ in range(5)]
    term = SACReg(3, buffer_batches=2)
    for step, batch in enumerate(batches):
        joined = torch.cat([batch, *(b.detach() for b in reversed(batches[max(0, step - 2) : step]))])
        assert torch.allclose(term(batch, step), SACReg(3)(joined, step))
    term.zero_grad()
    value = term(batches[4], 7)
    value.backward()
    assert all(b.grad is None for b in batches[:4])
    assert batches[4].grad is not None


def test_ring_buffer_survives_a_checkpoint() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(n, 6) for n in (8, 8, 5, 8)]  # a short batch is kept as it is
    term = SACReg(3, buffer_batches=2)
    for step in range(3):
        term(batches[step], step)
    resumed = SACReg(3, buffer_batches=2)
    resumed.load_state_dict(term.state_dict())
    expected = term(batches[3], 3)
    assert torch.equal(resumed(batches[3], 3), expected)
    assert not torch.allclose(SACReg(3)(batches[3], 3), expected)


def test_evaluation_leaves_the_buffer_alone() -> None:
    torch.manual_seed(0)
    term = SACReg(2, buffer_batches=1)
    term(torch.randn(8, 4), 0)
    before = term.past_0.clone()
    term.eval()
    term(torch.randn(8, 4), 1)
    assert torch.equal(term.past_0, before)


def test_degenerate_batch_is_named_once() -> None:
    torch.manual_seed(0)
    term = SACReg(16)
    with pytest.warns(UserWarning, match=r"16 centres \(16 images x 1 batches\) in slices of 16.*about 64 centres"):
        term(torch.randn(16, 32), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert term(torch.randn(16, 32), 1).isfinite()
        SACReg(16, buffer_batches=1)(torch.randn(16, 32), 0)  # 32 centres once the buffer is full


def test_precision_is_at_least_float32() -> None:
    torch.manual_seed(0)
    r = torch.randn(64, 8, dtype=torch.bfloat16)
    expected = SACReg(4)(r.float(), 0)
    with torch.autocast("cpu", torch.bfloat16):
        inside = SACReg(4)(r, 0)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    assert SACReg(4)(r.double(), 0).dtype == torch.float64


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e5])
def test_rank_deficient_centres_of_any_scale(scale: float) -> None:
    torch.manual_seed(0)
    r = scale * torch.randn(4, 16)
    eigenvalues = torch.linalg.svdvals((r - r.mean(0)).double()).square() / 4
    logdet = (eigenvalues + 1e-4).log().sum() + (16 - 4) * torch.tensor(1e-4, dtype=torch.float64).log()
    expected = (r.mean(0).double().square().sum() + eigenvalues.sum() - logdet - 16) / 2
    assert float(sacreg(r)) == pytest.approx(float(expected), rel=1e-3)


def test_what_has_no_determinant_is_nan() -> None:
    torch.manual_seed(0)
    assert sacreg(1e15 * torch.randn(4, 16)).isnan()  # the training loop stops at a NaN and names the term
    assert sacreg(torch.full((8, 2), torch.nan)).isnan()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"centers \(B, d\), got \(3,\)"):
        sacreg(torch.zeros(3))
    with pytest.raises(ValueError, match=r"slices of 8 needs centers \(B, d >= 8\), got \(4, 6\)"):
        SACReg(8)(torch.zeros(4, 6), 0)
    with pytest.raises(ValueError, match="slice_dim >= 1"):
        SACReg(0)
