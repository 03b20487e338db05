"""Which images each batch uses: batch k of rank r is a function of (seed, k, r, world size) alone.

The global batch of a step is a slice of the epoch's permutation; ranks take consecutive parts of it, so that N
processes together see exactly what one process with an N times larger batch sees. The images at an epoch's end that do
not fill an optimizer step are left out of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from aotadmm_timm.errors import UserError

from .draws import permutation


@dataclass(frozen=True)
class EpochSampler:
    """Which images each batch uses, of `length` in all. `batch_size` is per process, `accumulate` batches make an
    optimizer step."""

    length: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch size must be positive, got {self.batch_size}")
        whole = self.batch_size * self.world * self.accumulate
        if whole > self.length:
            raise UserError(
                f"batch of {whole} images is larger than the data set of {self.length}; use a smaller --batch-size"
                + (f" or --accumulate than {self.accumulate}" if self.accumulate > 1 else "")
            )

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch, in whole optimizer steps."""
        return self.length // (self.batch_size * self.world * self.accumulate) * self.accumulate

    @property
    def images_per_epoch(self) -> int:
        """Images that all processes together use in an epoch."""
        return self.batches_per_epoch * self.batch_size * self.world

    @property
    def left_out(self) -> int:
        """Images that an epoch leaves out, others each time: they do not fill an optimizer step."""
        return self.length - self.images_per_epoch

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """(step, epoch, sample indices of this rank) for the steps start .. stop - 1."""
        epoch_of_order, order = -1, np.empty(0, np.int64)
        for step in range(start, stop):
            epoch, position = divmod(step, self.batches_per_epoch)
            if epoch != epoch_of_order:
                epoch_of_order, order = epoch, permutation(self.seed, epoch, self.length)
            begin = (position * self.world + self.rank) * self.batch_size
            yield step, epoch, order[begin : begin + self.batch_size]
