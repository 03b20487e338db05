"""Whether autocast is on and to what, and where float32 is the least."""

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


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 itself; emulation is slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        return bool(flags.get("avx512_bf16") or flags.get("amx_bf16") or flags.get("bf16"))
    return False


def amp_dtype(choice: str, device: torch.device) -> torch.dtype | None:
    """Autocast type for `--amp`: "auto" takes bfloat16 where it is native, "bf16" insists, "off" gives None."""
    if choice == "off" or (choice == "auto" and not native_bf16(device)):
        return None
    return torch.bfloat16
