"""A test of two moments along slices: against samples, and against its limit of many slices."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.losses.slicing import sliced
from aotadmm_timm.theory.moment_slices import mean_and_spread, moments_limit, sliced_moments


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def directions(d: int, count: int) -> Tensor:
    a = draw(d, count, seed=3)
    return a / a.norm(dim=0)


def test_the_statistic_by_hand() -> None:
    x = torch.tensor([[1.0, 3.0], [2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(mean_and_spread(x), torch.tensor([4.0, 5.0], dtype=torch.float64), atol=1e-5, rtol=0)


def test_it_is_the_slicers_value_of_a_batch() -> None:
    z, a = draw(40, 5) @ draw(5, 5, seed=1) + 0.3, directions(5, 9)
    sigma = torch.cov(z.T, correction=0)
    torch.testing.assert_close(sliced(z, a, mean_and_spread), sliced_moments(z.mean(0), sigma, a))


@pytest.mark.parametrize("size", [1e-2, 1e-4])
def test_many_slices_near_the_optimum_are_the_limit(size: float) -> None:
    d = 4
    a = draw(d, d, seed=2)
    sigma = torch.eye(d, dtype=torch.float64) + size * (a + a.T)
    mu = size * draw(d, seed=4)
    value, expected = sliced_moments(mu, sigma, directions(d, 400_000)), moments_limit(mu, sigma)
    assert value.item() == pytest.approx(expected.item(), rel=0.01 + 3 * size)


def test_the_limit_is_made_of_vicregs_terms() -> None:
    d = 6
    a = draw(d, d)
    sigma, mu = a @ a.T / d, draw(d, seed=1)
    gap = sigma - torch.eye(d, dtype=torch.float64)
    diagonal = gap.diagonal()
    off = gap.square().sum() - diagonal.square().sum()
    parts = mu.square().mean() + (diagonal.sum() ** 2 + 2 * diagonal.square().sum() + 2 * off) / (4 * d * (d + 2))
    torch.testing.assert_close(moments_limit(mu, sigma), parts)
