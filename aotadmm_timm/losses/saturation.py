"""Statistics that grow as a power of their input, kept finite."""

import torch
from torch import Tensor


def saturate(x: Tensor, limit: float) -> Tensor:
    """x where |x| <= limit, exactly; beyond, +-limit, with a gradient that still points inwards.

    Derivative limit / |x| beyond: of a clamp it would be 0, and an embedding that has run off would never come back.
    """
    return x * (limit / x.detach().abs().clamp_min(limit))


def largest(dtype: torch.dtype, power: float) -> float:
    """What x may be so that x^power, summed over a batch, is far from overflow: 2e15 for squares in float32."""
    return torch.finfo(dtype).max ** (0.8 / power)
