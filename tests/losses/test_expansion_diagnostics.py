"""Diagnostics of the expansion, against the formulas one view at a time."""

import pytest
import torch
from torch import Tensor

from aotadmm_timm.evaluation import expansion_diagnostics
from aotadmm_timm.losses import sigreg
from aotadmm_timm.theory import normalize_energy
from aotadmm_timm.theory.expansion import covariance_part


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def directions(d: int, count: int) -> Tensor:
    return torch.nn.functional.normalize(draw(d, count, seed=9), dim=0)


def test_diagnostics_add_up_and_say_what_they_mean() -> None:
    z, a = draw(2, 256, 6) * 1.5 + 0.2, directions(6, 64)
    report = expansion_diagnostics(z, a)
    assert report["sigreg"] == pytest.approx(sigreg(z, a).item())
    assert report["sigreg_rest"] == pytest.approx(report["sigreg"] - report["sigreg_covariance"])
    sigmas = [torch.cov(view.T, correction=0) for view in z]
    assert report["sigreg_covariance"] == pytest.approx(256 * sum(covariance_part(s).item() for s in sigmas) / 2)
    assert report["trace_per_dim"] == pytest.approx(sum(s.trace().item() for s in sigmas) / 12)
    rates = [0.5 * torch.logdet(torch.eye(6) + 6 / 0.25 * s).item() for s in sigmas]
    assert report["coding_rate"] == pytest.approx(sum(rates) / 2)
    assert expansion_diagnostics(z + 5, a)["coding_rate"] == pytest.approx(report["coding_rate"])  # an offset
    normal = expansion_diagnostics(normalize_energy(z), a)
    assert normal["trace_per_dim"] == pytest.approx(1)
    assert normal["coding_rate"] < normal["coding_rate_isotropic"]


def test_higher_moments_show_in_the_rest_only() -> None:
    # +-1 coordinates: covariance I, but not Gaussian
    signs = torch.tensor([[1 - 2 * (i >> b & 1) for b in range(8)] for i in range(256)], dtype=torch.float64)
    report = expansion_diagnostics(signs, torch.eye(8, dtype=torch.float64))
    assert report["sigreg_covariance"] == pytest.approx(0, abs=1e-9)
    assert report["sigreg_rest"] > 5


def test_bad_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"N >= 1, got \(3,\)"):
        expansion_diagnostics(torch.zeros(3), directions(3, 4))
