"""The projector of joint-embedding methods, with BatchNorm over ranks."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import all_gather, world_size
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over the rows of all ranks: in training N processes give the numbers of one on the joined batch.

    torch's SyncBatchNorm does this on GPUs only. Parameters and state are those of `nn.BatchNorm1d`.

    Raises: UserError in training if the ranks hold a single row together.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if world_size() == 1:
            if len(x) < 2:
                raise UserError(f"BatchNorm needs at least 2 rows to train, got input of shape {tuple(x.shape)}")
            return super().forward(x)
        return self._joined(x)

    def _joined(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.autocast(x.device.type, enabled=False):
            rows = at_least_float32(x)
            # An empty rank has no mean; it takes part with weight zero.
            mean = rows.sum(0) / max(len(rows), 1)
            spread = (rows - mean).square().sum(0)
            stats = torch.cat([mean, spread, mean.new_tensor([len(rows)])])[None]
            stats = all_gather(stats, sizes=[1] * world_size())
            means, spreads, counts = stats[:, : x.shape[1]], stats[:, x.shape[1] : -1], stats[:, -1:]
            total = counts.sum()
            if len(rows) < 2 and total < 2:  # in this order: reading the total waits for the device
                raise UserError(f"BatchNorm needs at least 2 rows to train, got {int(total)} over all ranks")
            mean = (counts * means).sum(0) / total
            # Chan's formula: no difference of large numbers, one collective
            spread = (spreads + counts * (means - mean).square()).sum(0)
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean), momentum)
                self.running_var.lerp_((spread / (total - 1)).to(self.running_var), momentum)
            normalised = (rows - mean) * torch.rsqrt(spread / total + self.eps)
            if self.affine:
                normalised = normalised * self.weight + self.bias
            return normalised.to(x.dtype)


class Projector(nn.Sequential):
    """Linear, BatchNorm, ReLU for each hidden width, then a bare Linear: (N, in_dim) -> (N, dims[-1]).

    Projector(192, 2048, 2048, 64) is the one of LeJEPA.
    """

    def __init__(self, in_dim: int, *dims: int) -> None:
        if not dims or min(in_dim, *dims) < 1:
            raise UserError(f"a projector needs positive widths, at least one of them, got {(in_dim, *dims)}")
        widths = (in_dim, *dims)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths[:-1]):
            # BatchNorm subtracts the mean: a bias before it would be without effect
            layers += [nn.Linear(before, after, bias=False), BatchNorm(after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-2], widths[-1]))
        self.out_dim = dims[-1]
