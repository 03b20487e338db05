"""The head of DINO's family: a perceptron, a normalized embedding, and cosines to prototypes."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from aotadmm_timm.errors import UserError


class DINOHead(nn.Module):
    """(N, in_dim) -> normalized embedding (N, dims[-1]) -> its cosines to the prototypes (N, prototypes).

    Linear and GELU for each hidden width, then a linear layer: no BatchNorm. DINO's last layer is weight-normalized
    with norms fixed at 1, which is a cosine.

    Args:
        dims: hidden widths, then the embedding's.
        prototypes: outputs; None ends in the normalized embedding (SimDINO).
    """

    def __init__(self, in_dim: int, dims: tuple[int, ...], prototypes: int | None) -> None:
        super().__init__()
        if not dims or min(in_dim, *dims, prototypes or 1) < 1:
            raise UserError(f"a head needs positive widths, got {(in_dim, *dims)} and {prototypes} prototypes")
        layers: list[nn.Module] = []
        for before, after in pairwise((in_dim, *dims[:-1])):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear((in_dim, *dims)[-2], dims[-1]))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = nn.Parameter(torch.randn(prototypes, dims[-1])) if prototypes else None

    def forward(self, x: Tensor) -> Tensor:
        z = F.normalize(self.layers(x), dim=-1, eps=1e-6 if x.dtype == torch.float16 else 1e-12)
        return z if self.prototypes is None else F.linear(z, F.normalize(self.prototypes, dim=-1))
