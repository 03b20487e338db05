"""Theorem 1 in training: normalisation and the regulariser's scale."""

import math

import pytest
import torch
from torch import Tensor

from aotadmm_timm.theory import coding_rate_regularizer, normalize_energy
from aotadmm_timm.theory.expansion import covariance_part


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_normalisation_imposes_both_conditions_view_by_view() -> None:
    z = draw(3, 50, 6) * torch.tensor([1.0, 5.0, 0.01])[:, None, None] + 2
    normal = normalize_energy(z)
    for view in normal:
        torch.testing.assert_close(view.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-10)
        assert (view.T @ view / 50).trace().item() == pytest.approx(6)
    torch.testing.assert_close(normalize_energy(z * 7 - 3), normal)
    assert torch.equal(normalize_energy(torch.ones(5, 2)), torch.zeros(5, 2))
    torch.autograd.gradcheck(normalize_energy, draw(4, 3).requires_grad_(True))


def test_the_regulariser_is_the_gap_in_units_of_sigreg() -> None:
    n, d, eps = 40, 5, 0.3
    z = normalize_energy(draw(n, d) * torch.logspace(0, -0.1, d))
    c = d / eps**2
    theta = c / (1 + c)
    sigma = sum(torch.outer(row, row) for row in z) / n
    gap = 0.5 * (d * math.log(1 + c) - sum(math.log(1 + c * v) for v in torch.linalg.eigvalsh(sigma).tolist()))
    expected = n * 8 * 0.120592117 / (theta**2 * d * (d + 2)) * gap
    assert coding_rate_regularizer(z, eps=eps).item() == pytest.approx(expected, rel=1e-6)
    both = torch.stack([z, normalize_energy(draw(n, d, seed=4))])
    mean = (coding_rate_regularizer(both[0], eps=eps) + coding_rate_regularizer(both[1], eps=eps)) / 2
    torch.testing.assert_close(coding_rate_regularizer(both, eps=eps), mean)


def test_near_isotropy_it_equals_sigregs_covariance_part_in_value_and_gradient() -> None:
    # rows whose second moment is I + A with a small traceless A
    n, d = 512, 8
    q = torch.linalg.qr(draw(n, d)).Q * math.sqrt(n)
    z = (q * (1 + 0.02 * torch.linspace(-1, 1, d, dtype=torch.float64)).sqrt()).requires_grad_(True)
    ours = coding_rate_regularizer(z)
    theirs = n * covariance_part(z.T @ z / n)
    assert ours.item() == pytest.approx(theirs.item(), rel=0.02)
    gradients = [torch.autograd.grad(value, z)[0] for value in (ours, theirs)]
    # R rewards energy too: compare on the constraint, as Eq. (A.26) does
    x = z.detach()
    tangent = [g - (g * x).sum() / (x * x).sum() * x for g in gradients]
    torch.testing.assert_close(tangent[0], tangent[1], rtol=0.1, atol=float(tangent[1].abs().max()) * 0.02)


def test_descent_on_it_makes_a_narrow_set_isotropic() -> None:
    z = (draw(64, 4) * torch.tensor([3.0, 1.0, 0.3, 0.1])).requires_grad_(True)
    solver = torch.optim.Adam([z], lr=0.05)
    for _ in range(300):
        solver.zero_grad()
        coding_rate_regularizer(normalize_energy(z)).backward()
        solver.step()
    normal = normalize_energy(z).detach()
    torch.testing.assert_close(normal.T @ normal / 64, torch.eye(4, dtype=torch.float64), rtol=0, atol=0.02)


@pytest.mark.parametrize("call", [normalize_energy, coding_rate_regularizer])
def test_bad_shapes_are_named(call: object) -> None:
    with pytest.raises(ValueError, match=r"N >= 1, got \(3,\)"):
        call(torch.zeros(3))
