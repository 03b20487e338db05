"""Whether autocast is on, and where float32 is the least."""

import torch
from torch import Tensor


@torch.jit.unused
def is_symbol(t: Tensor) -> bool:
    """Whether torch.fx records the operations on `t`, which then has no dtype and no device to ask for."""
    return isinstance(t, torch.fx.Proxy)


def at_least_float32(t: Tensor) -> Tensor:
    """`t` itself if float32 or float64, else as float32: the precision of statistics, whatever autocast says."""
    if not torch.jit.is_scripting() and is_symbol(t):
        return t
    return t if t.dtype == torch.float32 or t.dtype == torch.float64 else t.float()


@torch.jit.unused
def autocast_is_on(t: Tensor) -> bool:
    """Whether an autocast is on for the device of `t`. TorchScript cannot ask."""
    device = t.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
