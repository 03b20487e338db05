"""SIGReg: how far the embeddings are from a standard Gaussian, along random directions."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from aotadmm_timm.autograd import once_only
from aotadmm_timm.distributed import all_reduce_sum, total_count, world_size
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

from .directions import check_kind, draw_directions
from .harmonics import Harmonics


def sigreg(z: Tensor, directions: Tensor, *, num_knots: int = 17, t_max: float = 3.0) -> Tensor:
    """Sliced Epps-Pulley distance of z to N(0, I); this process only.

    T = N * integral |phi_z(t) - exp(-t^2/2)|^2 exp(-t^2/2) dt, mean over directions   (LeJEPA, arXiv:2511.08544)

    where phi_z is the empirical characteristic function of the N projections on one direction.

    Args:
        z: embeddings (..., N, D); leading dimensions (views) are tested one by one and averaged.
        directions: (D, K), unit columns; no gradient flows to them.
        num_knots: points of the quadrature on [0, t_max], both ends included.
        t_max: where the quadrature ends.
    Returns: scalar, float32 or float64, under autocast too. Grows linearly in N away from the optimum, about 1.05 at
        N(0, I). Exactly collapsed embeddings get no gradient. In float32 finite for |z| up to 1e36.
    Raises: ValueError if z has fewer than 2 dimensions, no rows, or not the width of the directions.
    Differs from the paper: trapezoid on [0, t_max], doubled by symmetry.
    """
    return _sigreg(z, directions, num_knots, t_max, over_ranks=False)


class SIGReg(nn.Module):
    """`sigreg` over all ranks, along directions that are a function of (seed, step).

    `SIGReg(num_slices)(z, step)`: z (..., N, D) -> scalar. All ranks use the same directions, new at every step; ranks
    may hold different N. Value and gradient (once averaged over ranks) are those of one process on all rows.
    `directions`: how they are drawn, see `draw_directions`.
    """

    def __init__(
        self,
        num_slices: int = 256,
        *,
        num_knots: int = 17,
        t_max: float = 3.0,
        seed: int = 0,
        directions: str = "iid",
    ) -> None:
        super().__init__()
        if num_slices < 1:
            raise UserError(f"num_slices must be at least 1, got {num_slices}")
        check_kind(directions)
        self.num_slices, self.num_knots, self.t_max = num_slices, num_knots, t_max
        self.seed, self.directions = seed, directions

    def extra_repr(self) -> str:
        return f"{self.num_slices}, num_knots={self.num_knots}, t_max={self.t_max}, seed={self.seed}" + (
            "" if self.directions == "iid" else f", directions={self.directions!r}"
        )

    def forward(self, z: Tensor, step: int) -> Tensor:
        directions = draw_directions(self.directions, z.shape[-1], self.num_slices, self.seed, step).to(z.device)
        return _sigreg(z, directions, self.num_knots, self.t_max, over_ranks=True)


def _sigreg(z: Tensor, directions: Tensor, num_knots: int, t_max: float, over_ranks: bool) -> Tensor:
    if z.ndim < 2 or directions.ndim != 2 or z.shape[-1] != directions.shape[0]:
        raise ValueError(
            f"SIGReg needs z (..., N, D) and directions (D, K), got {tuple(z.shape)} and {tuple(directions.shape)}"
        )
    if directions.requires_grad:
        raise ValueError("SIGReg has no gradient for its directions: detach them")
    if num_knots < 2 or t_max <= 0:
        raise ValueError(f"SIGReg needs num_knots >= 2 and t_max > 0, got {num_knots} and {t_max}")
    count = total_count(z.shape[-2], z.device) if over_ranks else z.shape[-2]
    if count < 1:
        raise ValueError(f"SIGReg needs at least one row, got z of shape {tuple(z.shape)}")
    z = at_least_float32(z).reshape(math.prod(z.shape[:-2]), *z.shape[-2:])
    return _EppsPulley.apply(z, directions.to(z), num_knots, t_max, count, over_ranks)


# Projections worked on at a time. On a CPU the dozen arrays made of one tile should stay in its caches; on a GPU fewer
# launches count. The products with the embeddings are efficient only when wider than that: several tiles share one.
_TILE = {"cpu": 2**17}
_TILE_ELSEWHERE = 2**20
_TILES_PER_PRODUCT = 8


class _EppsPulley(torch.autograd.Function):
    """The gradient is made in the forward pass, tile by tile, while a tile's cosines are at hand.

    Kept for backward: that gradient, as large as z, where plain autograd keeps every cosine and sine of every knot.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, directions: Tensor, num_knots: int, t_max: float, count: int, over_ranks: bool
    ) -> Tensor:
        (views, samples, _), num_slices = z.shape, directions.shape[1]
        knots = num_knots - 1  # at t = 0 every characteristic function is 1: that knot contributes nothing
        spacing = t_max / knots
        t = spacing * torch.arange(1, num_knots, dtype=z.dtype, device=z.device)
        phi = torch.exp(-t.square() / 2)
        weight = 2 * spacing * phi
        weight[-1] /= 2
        gaussian = torch.cat([phi, torch.zeros_like(phi)])
        weight = torch.cat([weight, weight])

        # The tiles are reduced over ranks one by one: cut by the mean number of samples, which all ranks know.
        share = max(1, count // world_size() if over_ranks else count)
        tile = _TILE.get(z.device.type, _TILE_ELSEWHERE)
        width = max(1, _TILES_PER_PRODUCT * tile // (views * share))
        rows = min(max(1, tile // share), views * min(width, num_slices))
        harmonics = Harmonics(knots, rows, samples, z)
        distance = z.new_zeros(())
        grad = torch.zeros_like(z) if ctx.needs_input_grad[0] else None
        with torch.autocast(z.device.type, enabled=False):
            for some in directions.split(width, dim=1):
                projections = (spacing * some.mT @ z.mT).flatten(0, 1)  # (views * slices, samples)
                for x in projections.split(rows):
                    sums = harmonics.sums(x)
                    gap = (all_reduce_sum(sums) if over_ranks else sums) / count - gaussian
                    distance += (gap.square() @ weight).sum()
                    if grad is not None:  # d/dx cos(t x) = -t sin(t x), d/dx sin(t x) = t cos(t x)
                        by_cos, by_sin = (2 * weight * gap).chunk(2, dim=1)
                        harmonics.combine(torch.cat([t * by_sin, -t * by_cos], dim=1), out=x)
                if grad is not None:
                    grad.baddbmm_(projections.unflatten(0, (views, -1)).mT, some.mT.expand(views, -1, -1))
        tests = views * num_slices
        if grad is not None:
            ctx.save_for_backward(grad.div_(tests))
        ctx.over_ranks = over_ranks
        return distance * (count / tests)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        once_only("SIGReg")
        (grad,) = ctx.saved_tensors
        # Every rank's loss depends on this rank's rows: their gradients add up.
        scale = all_reduce_sum(grad_output) if ctx.over_ranks else grad_output
        return grad * scale, None, None, None, None, None
