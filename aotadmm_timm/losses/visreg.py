"""VISReg: scale, centre and shape of the embeddings, each by its own term."""

import torch
from torch import Tensor

from .matching import quantile_match
from .saturation import largest, saturate
from .slicing import Sliced, gather_rows


class VISReg(Sliced):
    """scale * mean (sigma - 1)^2 + center * mean mu^2 + shape * sliced quantile match   (arXiv:2606.02572)

    Means over the D dimensions, sigma with 1/N. The shape is that of (z - mu) / sigma, where sigma is a constant
    for the gradient and counts as 1e-6 at least.

    `VISReg()(z, step)`: z (..., N, D) -> scalar; views are tested one by one and averaged. No factor N.

    Args:
        scale, center, shape: weights of the three terms.
        num_slices, seed, directions: as in `Sliced`.
    """

    def __init__(
        self,
        num_slices: int = 256,
        *,
        scale: float = 1.0,
        center: float = 1.0,
        shape: float = 1.0,
        seed: int = 0,
        directions: str = "iid",
    ) -> None:
        super().__init__(quantile_match, num_slices, seed=seed, directions=directions, min_rows=2)
        self.scale, self.center, self.shape = scale, center, shape

    def extra_repr(self) -> str:
        return f"scale={self.scale}, center={self.center}, shape={self.shape}, {super().extra_repr()}"

    def forward(self, z: Tensor, step: int) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            rows = gather_rows(z, self.min_rows)
            rows = saturate(rows, largest(rows.dtype, 2))
            mean = rows.mean(1, keepdim=True)
            centred = rows - mean
            sigma = centred.square().mean(1, keepdim=True).clamp_min(1e-12).sqrt()
            parts = self.scale * (sigma - 1).square().mean() + self.center * mean.square().mean()
            return parts + self.shape * self.over_slices(centred / sigma.detach(), step)
