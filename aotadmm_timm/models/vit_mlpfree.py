"""MLP-free ViT: timm's Vision Transformer with each MLP replaced by a ReLU.

Section "Black-Box Transformer Validation" of "Attention-Only White-Box Transformer via LeJEPA-Based Self-Supervised
Pretraining".
"""

import re
from functools import partial
from typing import Any

import torch.nn.functional as F
from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as timm_filter_fn
from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.models.checkpoint import check_fit, unwrap_state_dict
from aotadmm_timm.models.configs import MINIATURE, cifar_cfg, imagenet_cfg
from aotadmm_timm.models.initialization import Float32InitTransformer


class ReLUMlp(nn.Module):
    """An "MLP" without parameters: ReLU. Takes and ignores the arguments of timm's `Mlp`."""

    def __init__(self, **unused: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


def checkpoint_filter_fn(state_dict: dict[str, Any], model: VisionTransformer) -> dict[str, Tensor]:
    """Any checkpoint that timm's ViT loads, without its MLPs.

    Raises: WeightsMismatch naming the tensors, with both shapes, that do not fit; `blocks.*.mlp.*` alone is left out.
    """
    state = timm_filter_fn(unwrap_state_dict(state_dict), model)
    state = {key: tensor for key, tensor in state.items() if not re.match(r"blocks\.\d+\.mlp\.", key)}
    check_fit(state, model, adapted_later=("patch_embed.proj.weight",))
    return state


class MLPFreeViT(Float32InitTransformer):
    """Every block is x + attn(LN x), then x + ReLU(LN x). Takes timm's VisionTransformer arguments.

    Raises: UserError for `fix_init`, which rescales MLPs.
    """

    def __init__(self, *, mlp_layer: Any = ReLUMlp, fix_init: bool = False, **kwargs: Any) -> None:
        if fix_init:
            raise UserError("fix_init rescales the MLPs, which these models do not have")
        super().__init__(mlp_layer=mlp_layer, **kwargs)


def _create(variant: str, size: dict[str, Any], pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    return build_model_with_cfg(
        MLPFreeViT,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **{**size, **kwargs},
    )


# The ViT's page and id: the paper that takes its MLPs away has none yet, and is named by its title.
_ORIGIN = {
    "origin_url": "https://github.com/google-research/vision_transformer",
    "paper_name": "Attention-Only White-Box Transformer via LeJEPA-Based Self-Supervised Pretraining, from An Image is "
    "Worth 16x16 Words: Transformers for Image Recognition at Scale",
    "paper_ids": "arXiv:2010.11929",
}
_cfg = partial(cifar_cfg, **_ORIGIN)
# Pixels in [-1, 1], as the ViT weights these models start from expect them.
_imagenet = partial(imagenet_cfg, mean=IMAGENET_INCEPTION_MEAN, std=IMAGENET_INCEPTION_STD, **_ORIGIN)

default_cfgs = generate_default_cfgs(
    {
        "vit_tiny_mlpfree": _cfg(),
        "vit_small_mlpfree": _cfg(),
        "vit_base_mlpfree": _cfg(),
        "vit_tiny_mlpfree_patch16_224": _imagenet(),
        "vit_small_mlpfree_patch16_224": _imagenet(),
        "vit_base_mlpfree_patch16_224": _imagenet(),
        "test_vit_mlpfree": _cfg(),
    }
)


@register_model
def vit_tiny_mlpfree(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """ViT-T-AoT of Table 4: 1.8 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 12, "num_heads": 3}
    return _create("vit_tiny_mlpfree", size, pretrained, **kwargs)


@register_model
def vit_small_mlpfree(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """ViT-S-AoT of Table 4: 7.2 M parameters at 32x32."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("vit_small_mlpfree", size, pretrained, **kwargs)


@register_model
def vit_base_mlpfree(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """The Base size of the same design."""
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("vit_base_mlpfree", size, pretrained, **kwargs)


@register_model
def vit_tiny_mlpfree_patch16_224(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """`vit_tiny_patch16_224` without MLPs."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3}
    return _create("vit_tiny_mlpfree_patch16_224", size, pretrained, **kwargs)


@register_model
def vit_small_mlpfree_patch16_224(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """`vit_small_patch16_224` without MLPs."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
    return _create("vit_small_mlpfree_patch16_224", size, pretrained, **kwargs)


@register_model
def vit_base_mlpfree_patch16_224(pretrained: bool = False, **kwargs: Any) -> MLPFreeViT:
    """`vit_base_patch16_224` without MLPs."""
    size = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
    return _create("vit_base_mlpfree_patch16_224", size, pretrained, **kwargs)


@register_model
def test_vit_mlpfree(**kwargs: Any) -> MLPFreeViT:
    """A miniature for tests."""
    return _create("test_vit_mlpfree", MINIATURE, **kwargs)
