"""Matching of sorted samples: to Gaussian quantiles, to a sparse sample, and VISReg's three terms."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses.directions import draw_directions, unit_directions
from aotadmm_timm.losses.matching import RDMReg, generalized_normal_scale, quantile_match, rectified_samples
from aotadmm_timm.losses.visreg import VISReg


def double(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_quantile_match_by_loop() -> None:
    for sample in 1.5 * double(3, 40) + 0.3:
        x = sorted(sample.tolist())
        expected = sum((a - stats.norm.ppf(i / 41)) ** 2 for i, a in enumerate(x, 1)) / 40
        assert float(quantile_match(sample)) == pytest.approx(expected, rel=1e-10)


def test_quantile_match_is_a_wasserstein_distance_in_kind() -> None:
    """Of a constant shift: W_1 = |shift| and W_2^2 = shift^2, on the same grid of quantiles."""
    quantiles = torch.special.ndtri(torch.arange(1, 201, dtype=torch.float64) / 201)
    for shift in (0.5, -2.0):
        first = stats.wasserstein_distance((quantiles + shift).numpy(), quantiles.numpy())
        assert float(quantile_match(quantiles + shift)) == pytest.approx(first**2, rel=1e-10)


@pytest.mark.parametrize(("p", "mean"), [(0.5, 0.0), (1.0, -1.0), (2.0, 0.0), (3.0, 0.5)])
def test_rectified_samples_are_scipys(p: float, mean: float) -> None:
    samples = rectified_samples(4000, 5, p=p, mean=mean, seed=1, step=2)
    sigma = generalized_normal_scale(p)
    law = stats.gennorm(p, loc=mean, scale=sigma * p ** (1 / p))
    assert float(law.var()) == pytest.approx(1)
    assert float((samples == 0).double().mean()) == pytest.approx(law.cdf(0), abs=0.01)
    positive = samples[samples > 0].double().numpy()
    test = stats.kstest(positive, lambda x: (law.cdf(x) - law.cdf(0)) / law.sf(0))
    assert test.pvalue > 1e-3
    assert not torch.equal(samples, rectified_samples(4000, 5, p=p, mean=mean, seed=1, step=3))
    assert torch.equal(samples, rectified_samples(4000, 5, p=p, mean=mean, seed=1, step=2))


@pytest.mark.parametrize("positive", [False, True])
def test_rdmreg_by_loops(positive: bool) -> None:
    z = double(2, 15, 4).abs() if positive else double(2, 15, 4)
    term = RDMReg(6, p=2.0, mean=-0.5, scale=1.2, positive=positive, seed=3)
    directions = unit_directions(4, 6, 3, 8).double()
    target = rectified_samples(15, 4, p=2.0, mean=-0.5, scale=1.2, seed=3, step=8).double()
    total = 0.0
    for view in z:
        for a in directions.T:
            x = sorted(sum(max(0.0, float(row[j])) * float(a[j]) for j in range(4)) for row in view)
            y = sorted(sum(float(row[j]) * float(a[j]) for j in range(4)) for row in target)
            total += sum((b - c) ** 2 for b, c in zip(x, y, strict=True)) / 15
    assert float(term(z, 8)) == pytest.approx(total / 12, rel=1e-10)


def test_rdmreg_is_least_at_its_target() -> None:
    term = RDMReg(64)
    target = rectified_samples(512, 8, seed=9)
    at_target = float(term(target, 0))
    assert at_target < 0.02
    for other in (0.5 * target, target + 0.3, torch.randn(512, 8).abs(), torch.zeros(512, 8)):
        assert float(term(other, 0)) > 2 * at_target


def test_rdmreg_of_negative_features() -> None:
    with pytest.warns(UserWarning, match="negative features"):
        RDMReg(4, positive=True)(double(8, 3), 0)
    with pytest.raises(UserError, match="needs p > 0 and scale > 0, got p=0"):
        RDMReg(p=0)


def test_visreg_restated() -> None:
    """The three terms of the paper, in one view, then the mean over views."""
    z = 0.7 * double(3, 20, 5) + 0.4
    term = VISReg(10, scale=2.0, center=3.0, shape=5.0, seed=4, directions="orthogonal")
    directions = draw_directions("orthogonal", 5, 10, 4, 6).double()
    quantiles = [stats.norm.ppf(i / 21) for i in range(1, 21)]
    total = 0.0
    for view in z:
        means = [float(view[:, d].sum()) / 20 for d in range(5)]
        sigmas = [math.sqrt(sum((float(a) - means[d]) ** 2 for a in view[:, d]) / 20) for d in range(5)]
        total += 2 * sum((s - 1) ** 2 for s in sigmas) / 5 + 3 * sum(m**2 for m in means) / 5
        standard = (view - torch.tensor(means)) / torch.tensor(sigmas, dtype=torch.float64)
        for a in directions.T:
            x = sorted((standard.double() @ a).tolist())
            total += 5 / 10 * sum((b - q) ** 2 for b, q in zip(x, quantiles, strict=True)) / 20
    assert float(term(z, 6)) == pytest.approx(total / 3, rel=1e-6)


def test_visregs_sigma_is_a_constant_for_the_gradient_of_the_shape() -> None:
    z = double(64, 4).requires_grad_()
    VISReg(16, scale=0.0, center=0.0)(z, 0).backward()
    leaf = z.detach().clone().requires_grad_()
    sigma = leaf.detach().std(0, correction=0)
    x = (leaf - leaf.mean(0)) / sigma @ unit_directions(4, 16, 0, 0).double()
    quantile_match(x.T).mean().backward()
    assert torch.allclose(z.grad, leaf.grad)  # type: ignore[arg-type]
    assert abs(float((z.grad * leaf.detach()).sum())) > 1e-3  # type: ignore[operator]
