"""Theorem 1 of AoT-ADMM: SIGReg's covariance part and the coding rate expand a representation alike (Appendix A).

Symbols: Sigma (d, d) covariance, c = d / eps^2, theta = c / (1 + c), A = Sigma - I, S = {Sigma >= 0 : tr Sigma = d}.
`C_w` belongs to the weight of the package's SIGReg, exp(-t^2 / 2) on its grid of knots.
Eq. (A.2) has no factor N, the package's `sigreg` has: N times the functions here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def knots(num_knots: int = 17, t_max: float = 3.0) -> tuple[Tensor, Tensor]:
    """SIGReg's quadrature on [0, t_max]: points t and weights w(t) dt, float64; the half line counts twice (even)."""
    t = torch.linspace(0, t_max, num_knots, dtype=torch.float64)
    step = t_max / (num_knots - 1)
    trapezoid = torch.full_like(t, 2 * step)
    trapezoid[[0, -1]] = step
    return t, trapezoid * torch.exp(-(t**2) / 2)


def covariance_constant(num_knots: int = 17, t_max: float = 3.0) -> float:
    """C_w = 1/4 integral t^4 exp(-t^2) w(t) dt   (Eq. A.6); 0.1206 on the default grid, as for the integral over R."""
    t, weight = knots(num_knots, t_max)
    return (t**4 * torch.exp(-(t**2)) * weight).sum().item() / 4


def covariance_part(sigma: Tensor, *, c_w: float | None = None) -> Tensor:
    """L2(Sigma) = C_w E_a[(a^T A a)^2] = C_w (tr(A)^2 + 2 |A|_F^2) / (d (d + 2))   (Eqs. A.6 and A.9)

    On S, where tr A = 0, this is Eq. (A.12). sigma (..., d, d) -> (...).
    """
    _check_square(sigma)
    d = sigma.shape[-1]
    a = sigma - torch.eye(d, dtype=sigma.dtype, device=sigma.device)
    squares = a.diagonal(dim1=-2, dim2=-1).sum(-1) ** 2 + 2 * a.square().sum((-2, -1))
    return (covariance_constant() if c_w is None else c_w) * squares / (d * (d + 2))


def coding_rate_gap(sigma: Tensor, *, eps: float) -> Tensor:
    """R(I) - R(Sigma) = -1/2 logdet(I + theta A), R(Sigma) = 1/2 logdet(I + c Sigma)   (Eqs. A.1 and A.19)

    Not negative on S, and theta^2 / 4 |A|_F^2 to leading order (Eq. A.22). sigma (..., d, d) -> (...).
    """
    _check_square(sigma)
    identity = torch.eye(sigma.shape[-1], dtype=sigma.dtype, device=sigma.device)
    factor = torch.linalg.cholesky(identity + _theta(sigma.shape[-1], eps) * (sigma - identity))
    return -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def gaussian_sigreg(sigma: Tensor, directions: Tensor, *, num_knots: int = 17, t_max: float = 3.0) -> Tensor:
    """Eq. (A.2) of N(0, Sigma) itself, without sampling: its projections have phi_a(t) = exp(-t^2 a^T Sigma a / 2).

    sigma (d, d), directions (d, K) unit columns -> scalar. Tends to `covariance_part` as Sigma -> I (Eqs. A.3 to A.6).
    """
    t, weight = knots(num_knots, t_max)
    variance = (directions * (sigma @ directions)).sum(0)[:, None].double()
    return ((torch.exp(-(t**2) * variance / 2) - torch.exp(-(t**2) / 2)).square() @ weight).mean()


def local_ratio(d: int, *, eps: float, c_w: float | None = None) -> float:
    """lim L2 / (R(I) - R) = 8 C_w / (theta^2 d (d + 2)) as Sigma -> I in S   (Eq. A.23)"""
    c_w = covariance_constant() if c_w is None else c_w
    return 8 * c_w / (_theta(d, eps) ** 2 * d * (d + 2))


def ratio_bounds(d: int, *, eps: float, c_w: float | None = None) -> tuple[float, float]:
    """k1, k2 of Proposition 1: the extremes of L2 / (R(I) - R) over all of S   (Eq. A.24), by search.

    The ratio depends on the spectrum alone. Where it is extreme, the eigenvalues that are not zero solve one quadratic
    equation, so they take at most two values: m zeros, j times x and l times y, with m + j + l = d and j x + l y = d.
    All m and j are tried on a grid of x, and the best point is refined. Memory grows as d^2; for d up to about 100.
    """
    if d < 2:
        raise ValueError(f"for d = {d} the set S holds the identity alone: the bounds need d >= 2")
    counts = [(m, j) for m in range(d - 1) for j in range(1, d - m)]
    m, j = torch.tensor(counts, dtype=torch.float64).T[..., None]
    theta, limit = _theta(d, eps), local_ratio(d, eps=eps, c_w=c_w)

    def ratio(x: Tensor, m: Tensor, j: Tensor) -> Tensor:  # in units of its limit
        rest = d - m - j
        y = ((d - j * x) / rest).clamp_min(0)
        squares = m + j * (x - 1) ** 2 + rest * (y - 1) ** 2
        gap = -0.5 * (m * math.log1p(-theta) + j * torch.log1p(theta * (x - 1)) + rest * torch.log1p(theta * (y - 1)))
        return torch.where(squares > 1e-8, theta**2 / 4 * squares / gap, 1.0)

    bounds = []
    for sign in (1, -1):
        x = torch.linspace(0, 1, 257, dtype=torch.float64) * d / j
        value = sign * ratio(x, m, j)
        row, column = divmod(int(value.argmin()), x.shape[1])
        best, extreme, width = x[row, column], value[row, column], d / j[row, 0] / 256
        for _ in range(8):
            near = (best + width * torch.linspace(-1, 1, 65, dtype=torch.float64)).clamp(0, float(d / j[row, 0]))
            value = sign * ratio(near, m[row], j[row])
            best, extreme, width = near[value.argmin()], torch.minimum(extreme, value.min()), width / 16
        bounds.append(limit * sign * min(extreme.item(), sign * 1.0))
    return bounds[0], bounds[1]


def traceless_gradients(sigma: Tensor, *, eps: float, c_w: float | None = None) -> tuple[Tensor, Tensor]:
    """The two gradients in Sigma, projected on the traceless symmetric matrices   (Eq. A.26)

    P[grad L2] = 4 C_w / (d (d + 2)) P[A]
    P[grad (R(I) - R)] = P[-theta / 2 (I + theta A)^-1] = theta^2 / 2 A + O(|A|^2)

    Both exact, not expanded. sigma (..., d, d) -> two tensors (..., d, d).
    """
    _check_square(sigma)
    d = sigma.shape[-1]
    theta = _theta(d, eps)
    identity = torch.eye(d, dtype=sigma.dtype, device=sigma.device)
    a = sigma - identity
    c_w = covariance_constant() if c_w is None else c_w
    return _traceless(4 * c_w / (d * (d + 2)) * a), _traceless(-theta / 2 * torch.linalg.inv(identity + theta * a))


def gradient_alignment(sigma: Tensor, *, eps: float) -> Tensor:
    """Cosine of the two `traceless_gradients`: 1 near I, positive on all of S. sigma (..., d, d) -> (...)."""
    left, right = traceless_gradients(sigma, eps=eps)
    return (left * right).sum((-2, -1)) / (left.flatten(-2).norm(dim=-1) * right.flatten(-2).norm(dim=-1))


def random_spectra(count: int, d: int, *, seed: int = 0) -> Tensor:
    """Diagonal matrices of S (count, d, d), float64, from nearly isotropic to nearly of rank one.

    Everything in this module depends on the spectrum alone, so diagonal matrices lose nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, d, generator=generator, dtype=torch.float64).clamp_min(1e-12)
    power = torch.exp(torch.linspace(math.log(0.02), math.log(50), count, dtype=torch.float64))[:, None]
    values = (-uniform.log()) ** power
    return torch.diag_embed(d * values / values.sum(1, keepdim=True))


def _theta(d: int, eps: float) -> float:
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    c = d / eps**2
    return c / (1 + c)


def _traceless(x: Tensor) -> Tensor:
    d = x.shape[-1]
    trace = x.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return x - trace / d * torch.eye(d, dtype=x.dtype, device=x.device)


def _check_square(sigma: Tensor) -> None:
    if sigma.ndim < 2 or sigma.shape[-1] != sigma.shape[-2]:
        raise ValueError(f"a covariance must be (..., d, d), got {tuple(sigma.shape)}")
