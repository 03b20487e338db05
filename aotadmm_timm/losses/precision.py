"""The precision of the statistics: at least float32, whatever autocast or the default dtype say."""

import torch
from torch import Tensor


def at_least_float32(t: Tensor) -> Tensor:
    """`t` itself if float32 or float64, else as float32."""
    return t if t.dtype in (torch.float32, torch.float64) else t.float()
