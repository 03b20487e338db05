"""Seeded weights: the same numbers whatever the initialization, with no gain at 1 and no bias at 0."""

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


def published_tost(*, patch: int, width: int, depth: int, heads: int, classes: int) -> dict:
    """A random state dict in the layout of the published ToST vision model."""
    norm = {"weight": (width,), "bias": (width,)}
    mlp = {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, width), "pos_embeder.token_projection.bias": (width,)}
    shapes["pos_embeder.token_projection.weight"] = (width, 64, 1, 1)
    halvings = patch.bit_length() - 1
    channels = [3, *(width >> i for i in reversed(range(halvings)))]
    for i in range(halvings):
        stem = f"patch_embed.proj.{2 * i}"
        shapes[f"{stem}.0.weight"] = (channels[i + 1], channels[i], 3, 3)
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{stem}.1.{name}"] = (channels[i + 1],)
        shapes[f"{stem}.1.num_batches_tracked"] = ()
    layers = {"blocks": (depth, 1, "to_out.0"), "cls_attn_blocks": (2, 3, "proj")}
    for kind, (count, projections, out) in layers.items():
        for i in range(count):
            matrices = {**mlp, "attn.qkv": (projections * width, width), f"attn.{out}": (width, width)}
            for name, shape in matrices.items():
                shapes |= {f"{kind}.{i}.{name}.weight": shape, f"{kind}.{i}.{name}.bias": shape[:1]}
            shapes |= {f"{kind}.{i}.{n}.{key}": shape for n in ("norm1", "norm2") for key, shape in norm.items()}
            shapes |= {f"{kind}.{i}.{gamma}": (width,) for gamma in ("gamma1", "gamma2")}
            if kind == "blocks":
                shapes[f"{kind}.{i}.attn.temp"] = (heads, 1)
    shapes |= {f"norm.{key}": shape for key, shape in norm.items()}
    return draw({**shapes, "head.weight": (classes, width), "head.bias": (classes,)})


def draw(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors: around 1 for normalization gains, scaled by fan-in for matrices."""
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
