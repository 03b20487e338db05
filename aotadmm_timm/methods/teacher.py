"""A momentum teacher: an average of a network over its training, which is never trained itself."""

import math
from typing import Self

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn


class MomentumTeacher(nn.Module):
    """teacher <- m teacher + (1 - m) student after every step; statistics such as BatchNorm's are copied.

    Args:
        student: copied as it is; the copy needs no gradient and stays in eval mode.
        batch_statistics: let its BatchNorm layers normalize by the batch in training (BYOL).
    """

    def __init__(self, student: nn.Module, *, batch_statistics: bool = False) -> None:
        super().__init__()
        self.batch_statistics = batch_statistics
        self.average = ModelEmaV3(student, exclude_buffers=True).requires_grad_(False)
        self.train()

    @property
    def module(self) -> nn.Module:
        return self.average.module

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.module.eval()
        for layer in self.module.modules():
            if self.batch_statistics and isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.train(mode)
        return self

    def update(self, student: nn.Module, momentum: float) -> None:
        """Move towards `student`, of the same structure."""
        self.average.decay = momentum
        self.average.update(student)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """What the averaged network makes of `x`, without gradient."""
        return self.module(x)


def cosine_momentum(done: int, steps: int, base: float) -> float:
    """1 - (1 - base) (1 + cos(pi done / steps)) / 2: from `base` at the start to 1 at the end (BYOL, DINO).

    lambda-JEPA writes it as tau = 1 - .002 (1 + cos(pi done / steps)): base .996.
    """
    return 1 - (1 - base) * (1 + math.cos(math.pi * done / max(1, steps))) / 2
