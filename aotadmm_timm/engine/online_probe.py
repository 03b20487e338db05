"""A linear classifier that learns beside a pretraining, on features that give it no gradient back."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aotadmm_timm.distributed import all_reduce_mean


class OnlineProbe(nn.Module):
    """Softmax regression on the features of the training views, one Adam step per batch.

    Its accuracy is that of augmented training images, each seen before it is learned from: a thermometer, not the
    frozen evaluation. All state is in buffers, so that a resumed run continues it; gradients are averaged over ranks.
    The gradient is written out: beside a training step its cost disappears.
    """

    weight: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor

    def __init__(self, width: int, num_classes: int, *, lr: float = 1e-3) -> None:
        super().__init__()
        for name in ("weight", "first", "second"):
            self.register_buffer(name, torch.zeros(num_classes, width + 1))
        self.register_buffer("steps", torch.zeros(()))
        self.lr = lr

    @torch.no_grad()
    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Learn from features (B, d) and labels (B,); returns the accuracy before that, a scalar."""
        with torch.autocast(features.device.type, enabled=False):
            x = F.layer_norm(features.float(), features.shape[-1:])
            x = F.pad(x, (0, 1), value=1.0)  # the bias
            labels = labels.to(x.device)
            logits = x @ self.weight.T
            error = logits.softmax(1)
            error[torch.arange(len(x), device=x.device), labels] -= 1
            gradient = all_reduce_mean(error.T @ x / len(x))
            self.steps += 1
            self.first.lerp_(gradient, 0.1)
            self.second.lerp_(gradient.square(), 0.001)
            rate = self.lr * (1 - 0.999**self.steps).sqrt() / (1 - 0.9**self.steps)
            self.weight -= rate * self.first / (self.second.sqrt() + 1e-8)
            return (logits.argmax(1) == labels).float().mean()
