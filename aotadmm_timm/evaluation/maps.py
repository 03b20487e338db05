"""Pictures of what a model attends to and how its patch features group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aotadmm_timm.evaluating import evaluating
from aotadmm_timm.evaluation.layerwise import attention_input, has_subspaces
from aotadmm_timm.models.unrolled import UnrolledTransformer, layer_states


@torch.no_grad()
def attention_maps(model: nn.Module, images: Tensor, *, layer: int = -1) -> Tensor:
    """softmax(s w w^T) with w = U_k^T z, for every head of one layer: the row of the class token, on the patch grid.

    Args:
        model: an `UnrolledTransformer` whose blocks have MSSA; it runs in eval mode.
        images: (B, C, H, W), normalised as the model expects.
        layer: block, counted from 0 or, negative, from the end.
    Returns: (B, K, h, w); a map and the weight on the prefix tokens sum to 1. Without class token: the mean over rows.
    Raises: ValueError if the model is not unrolled or that layer has no MSSA.
    """
    if not isinstance(model, UnrolledTransformer):
        raise ValueError(f"attention maps need an UnrolledTransformer, got {type(model).__name__}")
    blocks: Any = model.blocks
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"layer must be within {len(blocks)} layers, got {layer}")
    block = blocks[layer]
    with evaluating(model):
        x = attention_input(block, layer_states(model, images)[layer % len(blocks)])
    if x is None or not has_subspaces(block):
        raise ValueError(f"layer {layer} of {type(model).__name__} has no subspace attention")
    w = block.attn.qkv(x).unflatten(-1, (block.attn.num_heads, -1)).transpose(1, 2)
    weights = (block.attn.scale * w @ w.mT).softmax(-1)
    prefix = model.num_prefix_tokens
    row = weights[:, :, 0] if model.cls_token is not None else weights.mean(2)
    return row[..., prefix:].unflatten(-1, grid_size(model, images))


@torch.no_grad()
def patch_pca(model: nn.Module, images: Tensor, *, components: int = 3) -> Tensor:
    """First principal components of the patch features of all images together, each scaled to [0, 1]: colours.

    Args:
        model: a timm vision transformer; it runs in eval mode.
        images: (B, C, H, W), normalised as the model expects.
    Returns: (B, h, w, components). Signs are fixed so that each component's largest weight is positive.
    Raises: ValueError if there are fewer features than components.
    """
    vit: Any = model
    with evaluating(model):
        tokens = vit.forward_features(images)[:, vit.num_prefix_tokens :]
    features = tokens.flatten(0, 1).double()
    if components > min(features.shape):
        raise ValueError(f"{components} components need as many patches and features, got {tuple(features.shape)}")
    centred = features - features.mean(0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -components:].flip(1)
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    scores = centred @ axes
    low, high = scores.amin(0), scores.amax(0)
    scores = (scores - low) / (high - low).clamp_min(torch.finfo(scores.dtype).tiny)
    return scores.view(len(images), *grid_size(model, images), components).float()


def grid_size(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Patches (rows, columns) of such images."""
    stem: Any = model.patch_embed
    height, width = stem.dynamic_feat_size(tuple(images.shape[-2:]))
    return height, width
