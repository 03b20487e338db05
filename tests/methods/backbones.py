"""Backbones small enough for exact checks."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from aotadmm_timm.methods import Views


def tiny_vit(seed: int = 0) -> VisionTransformer:
    torch.manual_seed(seed)
    return VisionTransformer(
        img_size=8, patch_size=4, embed_dim=24, depth=1, num_heads=2, num_classes=0, dynamic_img_size=True
    )


class Linear(nn.Module):
    """Pooled features are one linear map of the pixels: formulas can be written down by hand."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(3, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        return self.map(images.mean((2, 3)))


def random_views(batch: int, num_global: int = 2, num_local: int = 1, seed: int = 0) -> Views:
    generator = torch.Generator().manual_seed(seed)
    return Views(
        torch.randn(num_global, batch, 3, 8, 8, generator=generator),
        torch.randn(num_local, batch, 3, 4, 4, generator=generator) if num_local else None,
    )
