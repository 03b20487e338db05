"""Random slices of the embedding space as a function of (seed, step): the same on all ranks and after a resume."""

import numpy as np
import torch
from torch import Tensor


def _gaussian(rows: int, columns: int, seed: int, step: int, stream: int) -> Tensor:
    # NumPy's generator takes the whole tuple; torch's CPU generator keeps only 32 bits of its seed. Drawn on the CPU:
    # CUDA generators depend on the kind of GPU.
    rng = np.random.default_rng((stream, seed, step))
    return torch.from_numpy(rng.standard_normal((rows, columns), dtype=np.float32))


def unit_directions(dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices) float32, columns uniform on the unit sphere."""
    directions = _gaussian(dim, num_slices, seed, step, stream=0)
    return directions / directions.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)


def orthonormal_slice(dim: int, slice_dim: int, seed: int, step: int) -> Tensor:
    """(dim, slice_dim) float32 with orthonormal columns: thin QR of a Gaussian matrix."""
    return torch.linalg.qr(_gaussian(dim, slice_dim, seed, step, stream=1))[0]
