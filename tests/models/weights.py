"""Seeded weights: the same numbers whatever the initialisation, with no gain at 1 and no bias at 0."""

import torch
from torch import Tensor, nn


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter in place: N(1, .2^2) for LayerNorm gains, N(0, 1 / fan_in) for matrices, N(0, .2^2) else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if ("norm" in name and name.endswith("weight")) or name.endswith("gain"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim > 1:
                parameter.copy_(noise * (parameter[0].numel() ** -0.5 if parameter.shape[0] > 1 else 0.5))
            else:
                parameter.copy_(0.2 * noise)
    return model


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def published_crate(*, patch: int, width: int, depth: int, classes: int, size: int, channels: int = 3) -> dict:
    """A random state dict in the layout of the published CRATE."""
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embedding": (1, (size // patch) ** 2 + 1, width),
        "cls_token": (1, 1, width),
        "to_patch_embedding.1.weight": (patch * patch * channels,),
        "to_patch_embedding.1.bias": (patch * patch * channels,),
        "to_patch_embedding.2.weight": (width, patch * patch * channels),
        "to_patch_embedding.2.bias": (width,),
        "to_patch_embedding.3.weight": (width,),
        "to_patch_embedding.3.bias": (width,),
    }
    for i in range(depth):
        shapes |= {
            f"transformer.layers.{i}.0.norm.weight": (width,),
            f"transformer.layers.{i}.0.norm.bias": (width,),
            f"transformer.layers.{i}.0.fn.qkv.weight": (width, width),
            f"transformer.layers.{i}.0.fn.to_out.0.weight": (width, width),
            f"transformer.layers.{i}.0.fn.to_out.0.bias": (width,),
            f"transformer.layers.{i}.1.norm.weight": (width,),
            f"transformer.layers.{i}.1.norm.bias": (width,),
            f"transformer.layers.{i}.1.fn.weight": (width, width),
        }
    return draw({**shapes, **_head(width, classes)})


def published_crate_alpha(*, patch: int, width: int, depth: int, classes: int, size: int) -> dict:
    """A random state dict in the layout of the published CRATE-alpha."""
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embedding": (1, (size // patch) ** 2 + 1, width),
        "cls_token": (1, 1, width),
        "conv1.weight": (width, 3, patch, patch),
        "conv1.bias": (width,),
    }
    for i in range(depth):
        shapes |= {
            f"transformer.layers.{i}.0.norm.weight": (width,),
            f"transformer.layers.{i}.0.norm.bias": (width,),
            f"transformer.layers.{i}.0.fn.qkv.weight": (width, width),
            f"transformer.layers.{i}.0.fn.to_out.0.weight": (width, width),
            f"transformer.layers.{i}.1.norm.weight": (width,),
            f"transformer.layers.{i}.1.norm.bias": (width,),
            f"transformer.layers.{i}.1.fn.D": (width, 4 * width),
            f"transformer.layers.{i}.1.fn.D1": (width, 4 * width),
        }
    return draw({**shapes, **_head(width, classes)})


def draw(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors: around 1 for normalisation gains, scaled by fan-in for matrices."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        gain = name.endswith(("norm.weight", "embedding.1.weight", "embedding.3.weight", "head.0.weight"))
        state[name] = 1 + 0.2 * noise if gain else noise * (noise[0].numel() ** -0.5 if noise.ndim > 1 else 0.2)
    return state


def _head(width: int, classes: int) -> dict[str, tuple[int, ...]]:
    return {
        "mlp_head.0.weight": (width,),
        "mlp_head.0.bias": (width,),
        "mlp_head.1.weight": (classes, width),
        "mlp_head.1.bias": (classes,),
    }
