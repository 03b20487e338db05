"""RankMe against its definition."""

import math

import pytest
import torch

from aotadmm_timm.evaluation import rankme
from aotadmm_timm.evaluation.spectrum import different_image_cosine


def test_rankme_is_the_literal_formula_on_uncentred_features() -> None:
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -3, 6) + 2.0
    eigenvalues = torch.linalg.eigvalsh(z.double().T @ z.double()).tolist()
    s = [math.sqrt(max(value, 0.0)) for value in eigenvalues]
    entropy = 0.0
    for value in s:
        p = value / sum(s) + 1e-7
        entropy -= p * math.log(p)
    assert rankme(z) == pytest.approx(math.exp(entropy), rel=1e-6)
    assert rankme(z) < rankme(z - z.mean(0))  # the mean is one more direction, and a dominant one


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_an_equal_spectrum_of_rank_r_gives_r(rank: int) -> None:
    q, _ = torch.linalg.qr(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    z = q[:, :rank] @ torch.randn(rank, 8, generator=torch.Generator().manual_seed(1)).svd().V.T
    assert rankme(z) == pytest.approx(rank, rel=1e-4)
    assert rankme(1e3 * z) == pytest.approx(rankme(z), rel=1e-6)


def test_collapse_and_bad_shapes() -> None:
    assert rankme(torch.zeros(5, 3)) == pytest.approx(1.0, abs=1e-4)
    assert rankme(torch.ones(5, 3)) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ValueError, match=r"\(2, 3, 4\)"):
        rankme(torch.zeros(2, 3, 4))


def test_cosine_of_different_images_is_the_mean_over_pairs() -> None:
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)) + 1
    pairs = [float(torch.cosine_similarity(z[i], z[j], dim=0)) for i in range(7) for j in range(7) if i != j]
    assert different_image_cosine(z) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert different_image_cosine(torch.ones(3, 2)) == pytest.approx(1.0)
    assert math.isnan(different_image_cosine(z[:1]))
