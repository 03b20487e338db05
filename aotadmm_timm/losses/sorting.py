"""Order statistics."""

import numpy as np
import torch
from torch import Tensor


def sort_samples(x: Tensor) -> Tensor:
    """x (..., n) with its last dimension in ascending order; differentiable. Equal entries come in any order.

    On a CPU the order is numpy's: with vector instructions it takes a fifth to a fifteenth of the time of torch.sort.
    """
    if x.device.type != "cpu":
        return x.sort(-1).values
    return x.gather(-1, torch.from_numpy(np.argsort(x.detach().numpy(), axis=-1)))
