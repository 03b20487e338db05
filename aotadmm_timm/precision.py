"""Where values are stored in half precision, and where float32 is the least."""

import torch
from torch import Tensor


@torch.jit.unused  # TorchScript knows neither graphs nor autocast
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
    """Whether an autocast is on for the device of `t`. Not in TorchScript, nor for a recorded graph's symbol."""
    device = t.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def as_autocast_stores(t: Tensor) -> Tensor:
    """`t` in the precision of the autocast that is on for its device; `t` itself if none is, or in a recorded graph."""
    if torch.jit.is_scripting():
        return t
    if is_symbol(t) or not autocast_is_on(t):
        return t
    return t.to(torch.get_autocast_dtype(t.device.type))
