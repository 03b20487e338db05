"""Random slices of the embedding space as a function of (seed, step): the same on all ranks and after a resume."""

import numpy as np
import torch
from torch import Tensor


def unit_directions(dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices) float32 on the CPU, columns uniform on the unit sphere."""
    directions = _gaussian(dim, num_slices, (seed, step))
    return directions / directions.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)


def orthonormal_slice(dim: int, slice_dim: int, seed: int, step: int, stream: int) -> Tensor:
    """(dim, slice_dim) float32 on the CPU, orthonormal columns: thin QR of a Gaussian matrix.

    Slices of different `stream` are independent.
    """
    return torch.linalg.qr(_gaussian(dim, slice_dim, (seed, step, stream)))[0]


def _gaussian(rows: int, columns: int, key: tuple[int, ...]) -> Tensor:
    # On the CPU, because what a GPU draws depends on its model. The key is hashed, because torch's CPU generator reads
    # 32 bits of its seed: seed + 2^32 step would be the same stream at every step.
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32)
