"""AoT and AoT-ADMM with token statistics in place of subspace attention: white-box, in linear time, without MLP.

The operator is that of "Token Statistics Transformer", arXiv:2412.17810; the layers around it are those of `aot` and
`aot_admm`, so that what differs from them is the operator alone.
"""

from functools import partial
from typing import Any

import torch
from timm.models import generate_default_cfgs, register_model

from aotadmm_timm.errors import UserError
from aotadmm_timm.layers.statistics_attention import TSSA
from aotadmm_timm.models.aot import AoTBlock
from aotadmm_timm.models.aot_admm import AoTADMM, AoTADMMBlock
from aotadmm_timm.models.configs import MINIATURE, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.unrolled import UnrolledTransformer, create_unrolled


class AoTToSTBlock(AoTBlock):
    """One AoT layer with token statistics, (B, N, d) -> (B, N, d): Z + TSSA(LN Z).  2 d^2 + 3 d + K parameters."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dim, num_heads, device=device, dtype=dtype, **kwargs)
        self.attn = TSSA(  # type: ignore[assignment]
            dim, num_heads, proj_bias=proj_bias, attn_drop=attn_drop, proj_drop=proj_drop, device=device, dtype=dtype
        )


class AoTADMMToSTBlock(AoTADMMBlock):
    """One AoT-ADMM layer with token statistics in the Z update.  2 d^2 + 4 d + 3 + K parameters.

    Z+ = RMS(a Z + b TSSA(LN Z) + c (V - W)) * gain, the other two states as in `admm_step`.

    MSSA(Z) is tokens, and Eq. 14 puts Z - MSSA(Z) in the place of the gradient of R^c: Z loses eta gamma. TSSA(Z) is
    minus the gradient itself, so Z keeps 1 - eta rho. The weights start there, divided by their sum (the rescaling of Z
    takes a common factor away).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        tied_proj: bool = False,
        attn_scale: float | None = None,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        if tied_proj or attn_scale is not None:
            raise UserError(f"token statistics have no tied_proj and no attn_scale, got {tied_proj} and {attn_scale}")
        super().__init__(dim, num_heads, device=device, dtype=dtype, **kwargs)
        self.attn = TSSA(  # type: ignore[assignment]
            dim, num_heads, proj_bias=proj_bias, attn_drop=attn_drop, proj_drop=proj_drop, device=device, dtype=dtype
        )
        _, eta_gamma, eta_rho = self.initial_coefficients
        total = 1 + eta_gamma
        self.initial_coefficients = ((1 - eta_rho) / total, eta_gamma / total, eta_rho / total)
        self.reset_parameters()


def _create_aot(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    return create_unrolled(UnrolledTransformer, variant, pretrained, **{"block_fn": AoTToSTBlock, **size, **kwargs})


def _create_admm(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(AoTADMM, variant, pretrained, **{"block_fn": AoTADMMToSTBlock, **size, **kwargs})


_ORIGIN = {
    "origin_url": "https://arxiv.org/abs/2412.17810",
    "paper_name": "Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction",
    "paper_ids": "arXiv:2412.17810",
}
_cfg = partial(cifar_cfg, **_ORIGIN)
_imagenet = partial(imagenet_cfg, **_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "aot_tost_tiny": _cfg(),
        "aot_tost_small": _cfg(),
        "aot_tost_base": _cfg(),
        "aot_tost_tiny_patch16_224": _imagenet(),
        "aot_tost_small_patch16_224": _imagenet(),
        "aot_tost_base_patch16_224": _imagenet(),
        "aot_admm_tost_tiny": _cfg(),
        "aot_admm_tost_small": _cfg(),
        "aot_admm_tost_base": _cfg(),
        "test_aot_tost": _cfg(),
        "test_aot_admm_tost": _cfg(),
    }
)


@register_model
def aot_tost_tiny(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Tiny with token statistics: 3.64 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create_aot("aot_tost_tiny", size, pretrained, **kwargs)


@register_model
def aot_tost_small(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Small with token statistics: 8.11 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create_aot("aot_tost_small", size, pretrained, **kwargs)


@register_model
def aot_tost_base(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Base with token statistics: 14.35 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "global_pool": "avg", "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create_aot("aot_tost_base", size, pretrained, **kwargs)


@register_model
def aot_tost_tiny_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Tiny with token statistics at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create_aot("aot_tost_tiny_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_tost_small_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Small with token statistics at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create_aot("aot_tost_small_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_tost_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> UnrolledTransformer:
    """AoT Base with token statistics at ImageNet size."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create_aot("aot_tost_base_patch16_224", size, pretrained, **kwargs)


@register_model
def aot_admm_tost_tiny(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Tiny with token statistics: 3.64 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create_admm("aot_admm_tost_tiny", size, pretrained, **kwargs)


@register_model
def aot_admm_tost_small(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Small with token statistics: 8.11 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 576, "depth": 12, "num_heads": 12}
    return _create_admm("aot_admm_tost_small", size, pretrained, **kwargs)


@register_model
def aot_admm_tost_base(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    """AoT-ADMM Base with token statistics: 14.36 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create_admm("aot_admm_tost_base", size, pretrained, **kwargs)


@register_model
def test_aot_tost(**kwargs: Any) -> UnrolledTransformer:
    """A miniature for tests."""
    return _create_aot("test_aot_tost", MINIATURE, **kwargs)


@register_model
def test_aot_admm_tost(**kwargs: Any) -> AoTADMM:
    """A miniature for tests."""
    return _create_admm("test_aot_admm_tost", MINIATURE, **kwargs)
