"""A test in many dimensions as the mean of tests in one: directions, projection, and the rows of all processes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aotadmm_timm.autograd import once_only
from aotadmm_timm.distributed import all_gather, all_reduce_sum, rank, world_size
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

from .directions import check_kind, draw_directions
from .sorting import sort_samples

Statistic = Callable[..., Tensor]  # (..., n) -> (...); with a target: (..., n), (..., m) sorted -> (...)


def sliced(
    z: Tensor, directions: Tensor, statistic: Statistic, *, target: Tensor | None = None, pairwise: bool = False
) -> Tensor:
    """Mean over directions, and over leading dimensions, of a univariate statistic of the projections of z.

    By the theorem of Cramer and Wold a distribution is what its projections are. This process only.

    Args:
        z: embeddings (..., N, D); leading dimensions (views) are tested one by one and averaged.
        directions: (D, K), unit columns; no gradient flows to them.
        statistic: (..., n) -> (...), the n samples of a projection to its value.
        target: sample (M, D); its projections, sorted, are the statistic's second argument.
        pairwise: the statistic holds something for every pair of samples: fewer projections at a time.
    Returns: scalar, float32 or float64, under autocast too.
    Raises: UserError if the shapes do not fit.
    """
    if z.ndim < 2 or directions.ndim != 2 or z.shape[-1] != directions.shape[0]:
        raise UserError(f"needs z (..., N, D) and directions (D, K), got {tuple(z.shape)}, {tuple(directions.shape)}")
    total = _sum_over_slices(z, directions, statistic, target, pairwise)
    return total / (directions.shape[1] * z.shape[:-2].numel())


class Sliced(nn.Module):
    """`sliced` over all ranks, along directions that are a function of (seed, step).

    `Sliced(statistic)(z, step)`: z (..., N, D) -> scalar. Every rank gathers the rows of all and tests its share of the
    slices; ranks may hold different N. Value and gradient (once averaged over ranks) are those of one process.

    Args:
        statistic, pairwise: see `sliced`.
        num_slices, seed: directions in a step, the same on all ranks, new at every step.
        directions: "iid", "orthogonal" or "sobol", see `draw_directions`.
        min_rows: rows without which the statistic is not defined; with fewer a UserError.
    """

    def __init__(
        self,
        statistic: Statistic,
        num_slices: int = 256,
        *,
        seed: int = 0,
        directions: str = "iid",
        min_rows: int = 1,
        pairwise: bool = False,
    ) -> None:
        super().__init__()
        if num_slices < 1:
            raise UserError(f"--num-slices must be at least 1, got {num_slices}")
        check_kind(directions)
        self.statistic, self.num_slices, self.seed, self.directions = statistic, num_slices, seed, directions
        self.min_rows, self.pairwise = min_rows, pairwise

    def extra_repr(self) -> str:
        name = getattr(self.statistic, "__name__", repr(self.statistic))
        return f"{name}, {self.num_slices}, directions={self.directions!r}, seed={self.seed}"

    def forward(self, z: Tensor, step: int) -> Tensor:
        return self.over_slices(gather_rows(z, self.min_rows), step)

    def over_slices(self, rows: Tensor, step: int, target: Tensor | None = None) -> Tensor:
        """`sliced` of the rows of all ranks (V, N, D), which every rank holds; each does a part of the slices."""
        directions = draw_directions(self.directions, rows.shape[-1], self.num_slices, self.seed, step)
        mine = directions[:, rank() :: world_size()]
        total = _sum_over_slices(rows, mine.to(rows), self.statistic, target, self.pairwise)
        return all_reduce_sum(total) / (self.num_slices * len(rows))


def gather_rows(z: Tensor, min_rows: int = 1) -> Tensor:
    """z (..., N_r, D) of each rank -> (V, N, D) of all, in at least float32, V the number of sets; differentiable.

    Raises: UserError if z is no matrix, or the ranks together have fewer than `min_rows` rows.
    """
    if z.ndim < 2:
        raise UserError(f"embeddings must be (..., N, D), got {tuple(z.shape)}")
    sets = at_least_float32(z).reshape(z.shape[:-2].numel(), *z.shape[-2:])
    rows = all_gather(sets.transpose(0, 1).contiguous()).transpose(0, 1) if world_size() > 1 else sets
    if rows.shape[1] < min_rows:
        raise UserError(f"needs at least {min_rows} rows over all processes, got {rows.shape[1]} (z {tuple(z.shape)})")
    return rows


# Projections worked on at a time: on a CPU what is made of one tile should stay in its caches; on a GPU fewer launches
# count.
_TILE = {"cpu": 2**17}
_TILE_ELSEWHERE = 2**22


def _sum_over_slices(
    z: Tensor, directions: Tensor, statistic: Statistic, target: Tensor | None, pairwise: bool
) -> Tensor:
    z = at_least_float32(z)
    z = z.reshape(z.shape[:-2].numel(), *z.shape[-2:])
    return _SumOverSlices.apply(z, directions.detach().to(z), statistic, target, pairwise)


class _SumOverSlices(torch.autograd.Function):
    """The gradient is made in the forward pass, tile by tile, while a tile's projections are at hand.

    Kept for backward: that gradient, as large as z, where plain autograd keeps several arrays as large as the
    projections.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, directions: Tensor, statistic: Statistic, target: Tensor | None, pairwise: bool
    ) -> Tensor:
        views, samples, _ = z.shape
        held = views * samples * (samples if pairwise else 1)
        width = max(1, _TILE.get(z.device.type, _TILE_ELSEWHERE) // max(1, held))
        grad = torch.zeros_like(z) if ctx.needs_input_grad[0] else None
        total = z.new_zeros(())
        with torch.autocast(z.device.type, enabled=False):
            for some in directions.split(width, dim=1) if directions.shape[1] else ():
                x = some.mT @ z.mT  # (views, slices, samples)
                reference = () if target is None else (sort_samples(some.mT @ target.to(z).mT),)
                if grad is None:
                    total += statistic(x, *reference).sum()
                    continue
                with torch.enable_grad():
                    value = statistic(x.requires_grad_(), *reference).sum()
                total += value.detach()
                (by_x,) = torch.autograd.grad(value, x)
                grad.baddbmm_(by_x.mT, some.mT.expand(views, -1, -1))
        if grad is not None:
            ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        once_only("a sliced statistic")
        (grad,) = ctx.saved_tensors
        return grad * grad_output, None, None, None, None
