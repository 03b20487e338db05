"""Coding rates against the paper's formulas taken literally (columns, eigenvalues, differences) in float64."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.theory import coding_rate, coding_rate_gradient, compression_rate, compression_rate_gradient


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_rate(columns: Tensor, eps: float) -> float:
    """Eq. (2) as printed: Z (d, N)."""
    d, n = columns.shape
    matrix = torch.eye(d, dtype=torch.float64)
    for i in range(d):
        for j in range(d):
            matrix[i, j] += d / (n * eps**2) * sum(float(columns[i, t] * columns[j, t]) for t in range(n))
    return 0.5 * sum(math.log(value) for value in torch.linalg.eigvalsh(matrix).tolist())


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5), (1, 3), (3, 1)])
@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_rate_is_eq_2_with_tokens_as_rows(shape: tuple[int, int], eps: float) -> None:
    z = draw(*shape)
    assert coding_rate(z, eps=eps).item() == pytest.approx(literal_rate(z.T, eps), rel=1e-10)
    if shape[0] != shape[1]:  # the transposed set is another set: d / N would be the wrong way round
        assert coding_rate(z.T, eps=eps).item() != pytest.approx(literal_rate(z.T, eps), rel=1e-3)


def test_compression_is_the_sum_over_heads_with_p_in_place_of_d() -> None:
    z, bases = draw(7, 6), draw(3, 6, 2, seed=1)
    expected = sum(literal_rate(bases[k].T @ z.T, 0.3) for k in range(3))
    assert compression_rate(z, bases, eps=0.3).item() == pytest.approx(expected, rel=1e-10)
    # one head that spans the space, orthonormal: R itself
    q = torch.linalg.qr(draw(6, 6, seed=2)).Q
    torch.testing.assert_close(compression_rate(z, q[None], eps=0.3), coding_rate(z, eps=0.3))


def test_leading_dimensions_are_separate_sets() -> None:
    z, bases = draw(2, 3, 5, 4), draw(2, 4, 2, seed=1)
    for rate in (coding_rate(z, eps=0.5), compression_rate(z, bases, eps=0.5)):
        assert rate.shape == (2, 3)
    assert compression_rate(z, bases, eps=0.5)[1, 2] == pytest.approx(compression_rate(z[1, 2], bases, eps=0.5).item())


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_gradients_equal_central_differences_and_autograd(shape: tuple[int, int]) -> None:
    z, bases = draw(*shape), draw(2, shape[1], 2, seed=1)
    for rate, gradient in (
        (lambda x: coding_rate(x, eps=0.4), coding_rate_gradient(z, eps=0.4)),
        (lambda x: compression_rate(x, bases, eps=0.4), compression_rate_gradient(z, bases, eps=0.4)),
    ):
        numeric = torch.zeros_like(z)
        for i in range(shape[0]):
            for j in range(shape[1]):
                step = torch.zeros_like(z)
                step[i, j] = 1e-5
                numeric[i, j] = (rate(z + step) - rate(z - step)) / 2e-5
        torch.testing.assert_close(gradient, numeric, rtol=1e-6, atol=1e-7)
        x = z.clone().requires_grad_(True)
        torch.testing.assert_close(gradient, torch.autograd.grad(rate(x), x)[0], rtol=1e-9, atol=1e-10)


def test_half_types_are_raised_and_autocast_is_kept_out() -> None:
    z, bases = draw(8, 4).float(), draw(2, 4, 2, seed=1).float()
    plain = coding_rate(z, eps=0.1), compression_rate(z, bases, eps=0.1), coding_rate_gradient(z, eps=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = coding_rate(z, eps=0.1), compression_rate(z, bases, eps=0.1), coding_rate_gradient(z, eps=0.1)
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)
    assert coding_rate(z.bfloat16(), eps=0.1).dtype == torch.float32
    assert coding_rate(z.bfloat16(), eps=0.1).isfinite()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding_rate(torch.zeros(3), eps=1.0), r"\(\.\.\., N, d\) with N, d >= 1, got \(3,\)"),
        (lambda: coding_rate(torch.zeros(0, 3), eps=1.0), r"got \(0, 3\)"),
        (lambda: coding_rate(torch.zeros(2, 3), eps=0.0), "eps must be positive, got 0.0"),
        (lambda: compression_rate(torch.zeros(2, 3), torch.zeros(2, 4, 2), eps=1.0), r"\(2, 3\) and \(2, 4, 2\)"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
