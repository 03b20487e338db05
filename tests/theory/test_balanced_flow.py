"""The closed form of the balanced flow: against integration and the scalar solution, and where it does not hold."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.theory.balance import balanced_factors, gradient_flow, gram_matrix
from aotadmm_timm.theory.balanced_flow import balanced_gram, encoder_of, map_of
from aotadmm_timm.theory.spectrum import effective_rank


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("lam", [-1.5, -0.2, 0.0, 0.7])
def test_it_is_the_integrated_flow(lam: float) -> None:
    w1, w2 = balanced_factors(0.1 * draw(5, 5), lam, rotation=torch.linalg.qr(draw(5, 5, seed=1)).Q)
    target = draw(5, 5, seed=2) / 3
    inputs = math.sqrt(5) * torch.eye(5, dtype=torch.float64)  # white
    path = gradient_flow(w1, w2, inputs, target @ inputs, time=6.0, steps=600)
    grams = balanced_gram(w1, w2, target, torch.tensor([t for t, _, _ in path], dtype=torch.float64))
    expected = torch.stack([gram_matrix(a, b) for _, a, b in path])
    assert (expected[-1] - expected[0]).abs().max() > 0.1
    torch.testing.assert_close(grams, expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(map_of(grams, 5)[-1], path[-1][2] @ path[-1][1], rtol=0, atol=1e-7)
    torch.testing.assert_close(encoder_of(grams, 5)[-1], path[-1][1].T @ path[-1][1], rtol=0, atol=1e-7)


def test_one_mode_without_imbalance_is_the_sigmoid() -> None:
    m0, s, times = 0.01, 0.8, torch.linspace(0, 12, 7, dtype=torch.float64)
    root = torch.tensor([[math.sqrt(m0)]], dtype=torch.float64)
    m = map_of(balanced_gram(root, root, torch.tensor([[s]], dtype=torch.float64), times), 1)[:, 0, 0]
    growth = torch.exp(2 * s * times)
    torch.testing.assert_close(m, s * growth / (growth - 1 + s / m0))  # Saxe et al. 2014


def test_a_direction_without_correlation_stays() -> None:
    w1, w2 = balanced_factors(torch.diag(torch.tensor([0.3, 0.2], dtype=torch.float64)), 0.0)
    target = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))  # F has the eigenvalue 0 twice
    m = map_of(balanced_gram(w1, w2, target, torch.tensor([0.0, 5.0], dtype=torch.float64)), 2)
    torch.testing.assert_close(m[0], torch.diag(torch.tensor([0.3, 0.2], dtype=torch.float64)))
    assert m[1, 1, 1].item() == pytest.approx(0.2 / (1 + 2 * 0.2 * 5))  # dm/dt = -2 m^2


def test_fast_modes_do_not_drown_slow_ones() -> None:
    times = torch.tensor([10.0, 20.0], dtype=torch.float64)
    target = torch.diag(torch.tensor([1.0, 0.25, 0.0], dtype=torch.float64))
    w1, w2 = balanced_factors(1e-3 * torch.eye(3, dtype=torch.float64), 0.0)
    m = map_of(balanced_gram(w1, w2, target, times), 3).diagonal(dim1=-2, dim2=-1)
    for mode, s in enumerate((1.0, 0.25)):
        growth = torch.exp(2 * s * times)
        torch.testing.assert_close(m[:, mode], s * growth / (growth - 1 + s / 1e-3), rtol=1e-6, atol=0)
    torch.testing.assert_close(m[:, 2], 1e-3 / (1 + 2e-3 * times), rtol=1e-4, atol=0)


def test_what_is_not_balanced_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of the identity"):
        balanced_gram(draw(3, 3), draw(3, 3, seed=1), draw(3, 3, seed=2), torch.zeros(1, dtype=torch.float64))
    w1, w2 = balanced_factors(draw(3, 3), 0.5)
    with pytest.raises(ValueError, match=r"\(3, 3\), got \(2, 3\)"):
        balanced_gram(w1, w2, draw(2, 3), torch.zeros(1, dtype=torch.float64))


def test_effective_rank_of_known_spectra() -> None:
    spectra = torch.tensor([[1.0, 1, 1, 1], [5, 0, 0, -1e-9], [1, 1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(effective_rank(spectra), torch.tensor([4.0, 1, 2], dtype=torch.float64))
