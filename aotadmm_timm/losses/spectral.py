"""SACReg: the covariance of the view centres keeps full rank and unit scale."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import all_gather
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

from .directions import orthonormal_slice


def sacreg(centers: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Spectral anti-collapse regularizer, the KL divergence of N(mu, S) from N(0, I) up to eps.

    1/2 [ |mu|^2 + tr S - logdet(S + eps I) - d ],  S = 1/B sum (r - mu)(r - mu)^T   (lambda-JEPA, section 3.3)

    Args:
        centers: (B, d), one row per image: the mean of its views.
        eps: added to the covariance inside the determinant.
    Returns: scalar, float32 or float64, under autocast too. Least, -d eps / 2, at zero mean and covariance (1 - eps) I.
    Raises: ValueError if centers is not a non-empty matrix.
    Differs from the authors' code, which divides by B - 1 and has eps in the trace too.
    """
    if centers.ndim != 2 or 0 in centers.shape:
        raise ValueError(f"SACReg needs centers (B, d), got {tuple(centers.shape)}")
    with torch.autocast(centers.device.type, enabled=False):
        dtype = at_least_float32(centers).dtype
        # A collapsed direction leaves an eigenvalue near eps beside others near 1 or far above: float32 roundings of
        # the covariance would be of its size. The matrices are small; Apple GPUs have no float64.
        r = centers.to(torch.float64 if centers.device.type != "mps" else torch.float32)
        mean = r.mean(0)
        r = r - mean
        covariance = r.mT @ r / len(r)
        identity = torch.eye(len(mean), dtype=r.dtype, device=r.device)
        factor, failed = torch.linalg.cholesky_ex(covariance + eps * identity)
        logdet = 2 * factor.diagonal().log().sum()
        logdet = torch.where(failed == 0, logdet, torch.nan)
        value = (mean.square().sum() + covariance.trace() - logdet - len(mean)) / 2
        return value.to(dtype)


class SACReg(nn.Module):
    """`sacreg` on a random orthonormal slice, divided by its width, over all ranks   (lambda-JEPA, App. B).

    `SACReg(slice_dim)(centers, step)`: centers (B, d) -> scalar. The slice U (d, slice_dim) is a function of
    (seed, step, stream), so it is the same on all ranks, after a resume, and independent between two modules of
    different `stream`. Ranks may hold different B: value and gradient are those of one process on all centres.

    With `buffer_batches` = q > 0 the last q batches of centres of all ranks, detached, join the current one, which
    alone carries gradient. They are buffers: a checkpoint holds them, so a resumed run does not start with few
    centres. In evaluation mode they are used, not replaced.

    Warns, once, if the full buffer has no more centres than the slice is wide: the covariance then is singular.
    Raises: ValueError if the centres are narrower than the slice.
    """

    def __init__(
        self, slice_dim: int, *, buffer_batches: int = 0, eps: float = 1e-4, seed: int = 0, stream: int = 0
    ) -> None:
        super().__init__()
        if slice_dim < 1 or buffer_batches < 0:
            raise UserError(f"SACReg needs slice_dim >= 1, buffer_batches >= 0, got {slice_dim} and {buffer_batches}")
        self.slice_dim, self.buffer_batches, self.eps = slice_dim, buffer_batches, eps
        self.seed, self.stream = seed, stream
        self._warned = False
        for age in range(buffer_batches):
            self.register_buffer(f"past_{age}", torch.empty(0, 0))  # (B, d) once filled; 0 is the newest

    def extra_repr(self) -> str:
        return f"{self.slice_dim}, buffer_batches={self.buffer_batches}, eps={self.eps}, seed={self.seed}"

    def forward(self, centers: Tensor, step: int) -> Tensor:
        if centers.ndim != 2 or centers.shape[1] < self.slice_dim:
            raise UserError(
                f"SACReg of slices of {self.slice_dim} needs centers (B, d >= {self.slice_dim}), "
                f"got {tuple(centers.shape)}"
            )
        current = all_gather(at_least_float32(centers))
        self._warn_if_degenerate(len(current))
        past = [batch.to(current) for batch in self._past() if len(batch)]
        if self.training:
            self._push(current.detach())
        basis = orthonormal_slice(centers.shape[1], self.slice_dim, self.seed, step, self.stream).to(current)
        with torch.autocast(centers.device.type, enabled=False):
            return sacreg(torch.cat([current, *past]) @ basis, eps=self.eps) / self.slice_dim

    def _past(self) -> list[Tensor]:
        return [getattr(self, f"past_{age}") for age in range(self.buffer_batches)]

    def _push(self, batch: Tensor) -> None:
        for age, kept in enumerate([batch, *self._past()][: self.buffer_batches]):
            setattr(self, f"past_{age}", kept)

    def _warn_if_degenerate(self, batch: int) -> None:
        centers = batch * (1 + self.buffer_batches)
        if centers <= self.slice_dim and not self._warned:
            self._warned = True
            warnings.warn(
                f"SACReg sees {centers} centres ({batch} images x {1 + self.buffer_batches} batches) in slices of "
                f"{self.slice_dim}: their covariance is singular. Have about {4 * self.slice_dim} centres: a larger "
                "batch, more buffered batches, or a narrower slice",
                stacklevel=3,
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The shapes of the buffered batches are the checkpoint's, not those of a module that has seen no batch.
        for age, batch in enumerate(self._past()):
            saved = state_dict.get(f"{prefix}past_{age}")
            if saved is not None:
                setattr(self, f"past_{age}", batch.new_empty(saved.shape, dtype=saved.dtype))
        super()._load_from_state_dict(state_dict, prefix, *args)
