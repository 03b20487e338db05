"""Draws depend on (seed, epoch, index, view, draw, stream) alone, and look like independent uniform numbers."""

import numpy as np
import pytest

from aotadmm_timm.data.draws import permutation, uniform


def test_a_draw_is_a_function_of_its_place() -> None:
    whole = uniform(3, 5, np.arange(100), 4, 7)
    assert whole.shape == (100, 4, 7)
    np.testing.assert_array_equal(uniform(3, 5, np.array([42, 7]), 4, 7), whole[[42, 7]])
    np.testing.assert_array_equal(uniform(3, 5, np.array([42]), np.array([2]), 7)[0, 0], whole[42, 2])
    np.testing.assert_array_equal(uniform(3, 5, np.array([42]), 4, 3)[0], whole[42, :, :3])


@pytest.mark.parametrize("change", ["seed", "epoch", "stream"])
def test_every_argument_matters(change: str) -> None:
    arguments = {"seed": 0, "epoch": 0, "stream": 0}
    first = uniform(index=np.arange(2000), views=2, draws=2, **arguments)
    second = uniform(index=np.arange(2000), views=2, draws=2, **arguments | {change: 1})
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.04
    assert not np.intersect1d(first, second).size


def test_uniform_and_uncorrelated_in_every_direction() -> None:
    u = uniform(0, 0, np.arange(4000), 4, 4)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, 20, (0, 1))[0]
    expected = u.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-square with 19 degrees; 50 is p = 1e-4
    assert len(np.unique(u)) == u.size
    for shifted, kept in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[:, :, 1:], u[:, :, :-1])):
        assert abs(np.corrcoef(shifted.ravel(), kept.ravel())[0, 1]) < 0.02


def test_permutation() -> None:
    order = permutation(1, 2, 50)
    assert sorted(order) == list(range(50))
    np.testing.assert_array_equal(order, permutation(1, 2, 50))
    assert (order != permutation(1, 3, 50)).any()
    assert (order != permutation(2, 2, 50)).any()
