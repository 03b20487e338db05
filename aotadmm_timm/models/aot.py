"""AoT: attention-only transformer unrolled from subspace denoising.

"Attention-Only Transformers via Unrolled Subspace Denoising", arXiv:2506.03790.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, LayerNorm
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from aotadmm_timm.layers.subspace_attention import MSSA
from aotadmm_timm.models.configs import MINIATURE, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.unrolled import UnrolledBlock, UnrolledTransformer, create_unrolled


class AoTBlock(UnrolledBlock):
    """One AoT layer, (B, N, d) -> (B, N, d): Z + MSSA(LN Z).  2 d^2 + 3 d parameters.

    Differs from the paper's multi-head subspace self-attention as `MSSA` does: output projection with bias.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Any = LayerNorm,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = norm_layer(dim, **dd)
        self.attn = MSSA(dim, num_heads, proj_bias=proj_bias, attn_drop=attn_drop, proj_drop=proj_drop, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def step(self, z: Tensor) -> tuple[Tensor]:
        return (z + self.drop_path(self.attn(self.norm(z))),)


def _create(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    return create_unrolled(UnrolledTransformer, variant, pretrained, **{"block_fn": AoTBlock, **size, **kwargs})


_ORIGIN = {
    "origin_url": "https://arxiv.org/abs/2506.03790",
    "paper_name": "Attention-Only Transformers via Unrolled Subspace Denoising",
    "paper_ids": "arXiv:2506.03790",
}
_cfg = partial(cifar_cfg, **_ORIGIN)
_imagenet = partial(imagenet_cfg, **_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "aot_tiny": _cfg(),
        "aot_small": _cfg(),
        "aot_base": _cfg(),
        "aot_tiny_patch16_224": _imagenet(),
        "aot_small_patch16_224": _imagenet(),
        "aot_base_patch16_224": _imagenet(),
        "test_aot": _cfg(),
    }
)


# At 32x32 the mean of the patch tokens was measured to be better than the class token: train/RESULTS.md.
@register_model
def aot_tiny(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Tiny of Table 3 of the AoT-ADMM paper: 3.63 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("aot_tiny", size, pretrained, **kwargs)


@register_model
def aot_small(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Small of Table 3 of the AoT-ADMM paper: 8.11 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("aot_small", size, pretrained, **kwargs)


@register_model
def aot_base(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Base of Table 3 of the AoT-ADMM paper: 14.35 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("aot_base", size, pretrained, **kwargs)


@register_model
def aot_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Tiny at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("aot_tiny_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Small at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create("aot_small_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Base at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("aot_base_patch16_224", size, pretrained, **kwargs)


@register_model
def test_aot(**kwargs: Any) -> UnrolledTransformer:
    """A miniature for tests."""
    return _create("test_aot", MINIATURE, **kwargs)
