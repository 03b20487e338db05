"""Random slices of the embedding space as a function of (seed, step): the same on all ranks and after a resume."""

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from aotadmm_timm.errors import UserError, nearest

Kind = Literal["iid", "orthogonal", "sobol"]
DIRECTIONS: tuple[str, ...] = get_args(Kind)


def draw_directions(kind: str, dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices) float32 on the CPU: unit columns, each of them uniform on the sphere.

    Args:
        kind: "iid": independent; "orthogonal": blocks of `dim` orthonormal columns; "sobol": a low-discrepancy set.
    Raises: UserError for another kind, or more dimensions than the Sobol sequence has (21,201).
    """
    check_kind(kind)
    draw = {"iid": unit_directions, "orthogonal": orthogonal_directions, "sobol": sobol_directions}[kind]
    return draw(dim, num_slices, seed, step)


def check_kind(kind: str) -> None:
    if kind not in DIRECTIONS:
        raise UserError(f"--directions is one of {', '.join(DIRECTIONS)}, got {kind!r}{nearest(kind, DIRECTIONS)}")


def unit_directions(dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices) float32 on the CPU, columns uniform on the unit sphere."""
    return _unit(_gaussian(dim, num_slices, (seed, step)))


def orthogonal_directions(dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices): independent blocks of `dim` columns of a random rotation, the last one cut short.

    The sign of R's diagonal is moved into Q: only so is Q of the QR of a Gaussian matrix uniform over the rotations.
    """
    width = min(dim, num_slices)
    blocks = -(-num_slices // width)
    gaussian = _gaussian(dim, blocks * width, (seed, step)).unflatten(1, (blocks, width)).transpose(0, 1)
    q, r = torch.linalg.qr(gaussian)
    q = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q)[:, None] * q
    return q.transpose(0, 1).flatten(1)[:, :num_slices]


def sobol_directions(dim: int, num_slices: int, seed: int, step: int) -> Tensor:
    """(dim, num_slices): the first points of a scrambled Sobol sequence through the normal quantile, normalized.

    The sequence is scrambled by `seed`; each step flips the bits of its points by a random word per dimension (a
    digital shift), which keeps the set's balance and makes every point uniform. To scramble anew at each step would
    take longer than the test itself. Best balanced if num_slices is a power of two.
    """
    points = _sobol_points(dim, num_slices, seed)
    key = np.random.SeedSequence((seed, step))
    shift = torch.from_numpy(np.random.default_rng(key).integers(2**_BITS, size=dim, dtype=np.int64))
    uniform = ((points ^ shift).double() + 0.5) / 2**_BITS  # the middle of its cell: never 0 or 1
    return _unit(torch.special.ndtri(uniform).T).to(torch.float32)


def orthonormal_slice(dim: int, slice_dim: int, seed: int, step: int, stream: int) -> Tensor:
    """(dim, slice_dim) float32 on the CPU, orthonormal columns: thin QR of a Gaussian matrix.

    Slices of different `stream` are independent.
    """
    return torch.linalg.qr(_gaussian(dim, slice_dim, (seed, step, stream)))[0]


_BITS = torch.quasirandom.SobolEngine.MAXBIT


@lru_cache(maxsize=8)
def _sobol_points(dim: int, count: int, seed: int) -> Tensor:
    """(count, dim) integers below 2^30."""
    limit = torch.quasirandom.SobolEngine.MAXDIM
    if dim > limit:
        raise UserError(f"--directions sobol serves embeddings of up to {limit} dimensions, got {dim}")
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=int(_hash((seed,))))
    return (engine.draw(count, dtype=torch.float64) * 2**_BITS).long()


def _unit(directions: Tensor) -> Tensor:
    return directions / directions.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)


def _hash(key: tuple[int, ...]) -> int:
    # torch's CPU generator reads 32 bits of its seed: seed + 2^32 step would be the same stream at every step.
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def _gaussian(rows: int, columns: int, key: tuple[int, ...]) -> Tensor:
    # On the CPU, because what a GPU draws depends on its model.
    generator = torch.Generator().manual_seed(_hash(key))
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32)
