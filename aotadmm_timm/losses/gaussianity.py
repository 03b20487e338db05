"""SIGReg: how far the embeddings are from a standard Gaussian, along random directions."""

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import all_reduce_sum

from .directions import unit_directions
from .precision import at_least_float32


def _statistic(z: Tensor, directions: Tensor, num_knots: int, t_max: float, across_ranks: bool) -> Tensor:
    z = at_least_float32(z)
    with torch.autocast(z.device.type, enabled=False):
        x = z @ directions.to(z)
        t = torch.linspace(0, t_max, num_knots, dtype=z.dtype, device=z.device)
        phi = torch.exp(-t.square() / 2)
        weight = 2 * (t_max / (num_knots - 1)) * phi
        weight[[0, -1]] /= 2
        count = z.new_tensor(z.shape[-2])
        phase = x[..., None] * t
        sums = torch.stack([phase.cos().sum(-3), phase.sin().sum(-3)])
        if across_ranks:
            sums, count = all_reduce_sum(sums), all_reduce_sum(count)
        real, imag = sums / count
        return count * (((real - phi).square() + imag.square()) @ weight).mean()


def sigreg(z: Tensor, directions: Tensor, *, num_knots: int = 17, t_max: float = 3.0) -> Tensor:
    """Sliced Epps-Pulley distance of z to N(0, I); this process only."""
    return _statistic(z, directions, num_knots, t_max, across_ranks=False)


class SIGReg(nn.Module):
    """`sigreg` over all ranks, along directions that are a function of (seed, step)."""

    def __init__(self, num_slices: int = 256, *, num_knots: int = 17, t_max: float = 3.0, seed: int = 0) -> None:
        super().__init__()
        self.num_slices, self.num_knots, self.t_max, self.seed = num_slices, num_knots, t_max, seed

    def forward(self, z: Tensor, step: int) -> Tensor:
        directions = unit_directions(z.shape[-1], self.num_slices, self.seed, step).to(z.device)
        return _statistic(z, directions, self.num_knots, self.t_max, across_ranks=True)
