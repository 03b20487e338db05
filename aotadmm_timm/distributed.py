"""Every collective of the package. Without a process group all of them are the identity.

The reductions are autograd-aware: their backward reduces over the ranks too. With a loss that every rank computes
from reduced quantities, and with the averaging of gradients that DistributedDataParallel does, N processes then get
the gradient of one process on the joined batch. A plain `dist.all_reduce` would give the same loss and a gradient
too small by the number of ranks.
"""

import inspect
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from aotadmm_timm.errors import UserError

# Keeps DistributedDataParallel from sending rank 0's buffers to all ranks in every forward pass. The later name of the
# argument where torch has it: it warns of the earlier one.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if is_initialized() else 1


def is_main() -> bool:
    return rank() == 0


def barrier() -> None:
    if is_initialized():
        dist.barrier()


def init_distributed(device: str | None = None) -> torch.device:
    """Join the process group that torchrun or SLURM describes, if any, and name this process's device.

    Args:
        device: a torch device string; by default the GPU if there is one, else the CPU.
    Raises: UserError for a device that torch does not know or cannot reach.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {device!r} was asked for, but torch sees no CUDA device")
    try:
        asked = torch.device(device)
        if asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
            raise UserError(f"torch sees {torch.cuda.device_count()} CUDA devices")
        if asked.type != "cuda":  # a CUDA context would take memory on a device that may not be this process's
            torch.zeros(1, device=asked).item()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError, ValueError) as err:
        reason = next(iter(str(err).splitlines()), type(err).__name__)
        raise UserError(f"--device {device}: {reason}; expected cpu, cuda or cuda:N") from None
    if is_initialized():  # a second call in one process (tests, notebooks) keeps the group
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device(f"cuda:{local}" if device.startswith("cuda") else device)
    from timm.utils.distributed import init_distributed_device_so  # here: loaders' workers have no use for timm

    return torch.device(init_distributed_device_so(device)["device"])


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        total = t.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return all_reduce_sum(grad)  # itself differentiable


def all_reduce_sum(t: Tensor) -> Tensor:
    """Sum of `t` over the ranks, as a new tensor; differentiable."""
    return _AllReduceSum.apply(t) if world_size() > 1 else t


def all_reduce_mean(t: Tensor) -> Tensor:
    """Mean of `t` over the ranks, every rank with equal weight; differentiable."""
    return all_reduce_sum(t) / world_size() if world_size() > 1 else t


def mean_over_batch(t: Tensor) -> Tensor:
    """Mean of all elements of `t` over all ranks, exact if ranks hold different numbers of them; differentiable."""
    if world_size() == 1:
        return t.mean()
    total = all_reduce_sum(torch.stack([t.sum(), t.new_tensor(t.numel())]))
    return total[0] / total[1]


def total_count(count: int, device: torch.device) -> int:
    """Sum over the ranks of a number of rows; `device` is where the process group's tensors live."""
    return int(all_reduce_sum(torch.tensor(count, device=device))) if world_size() > 1 else count


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        padded = t.new_zeros(max(sizes), *t.shape[1:])
        padded[: len(t)] = t
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce_sum(grad).split(ctx.sizes)[rank()], None


def all_gather(t: Tensor, *, sizes: list[int] | None = None) -> Tensor:
    """Rows of all ranks in rank order, (sum of n_r, ...) from (n_r, ...); differentiable.

    Args:
        t: (n_r, ...), the n_r may differ.
        sizes: the n_r, where every rank knows them; otherwise they are gathered first, which waits for the device.
    """
    if world_size() == 1:
        return t
    if sizes is None:
        counts = [torch.empty(1, dtype=torch.int64, device=t.device) for _ in range(world_size())]
        dist.all_gather(counts, torch.tensor([len(t)], device=t.device))
        sizes = [int(count) for count in counts]
    return _AllGather.apply(t, sizes)


def all_gather_objects(obj: Any) -> list[Any]:
    """One picklable object per rank, in rank order, on every rank."""
    if world_size() == 1:
        return [obj]
    objects = [None] * world_size()
    dist.all_gather_object(objects, obj)
    return objects


def any_rank(flag: bool, device: torch.device | None = None) -> bool:
    """Whether `flag` holds on any rank; every rank gets the same answer."""
    if world_size() == 1:
        return flag
    value = torch.tensor(float(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value)
