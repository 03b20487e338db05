"""What the families share: pretrained configurations, bundled weights, the size of the miniatures."""

from pathlib import Path
from typing import Any

from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
)

WEIGHTS = Path(__file__).resolve().parent.parent / "weights"

# The size of every family's `test_*` model.
MINIATURE = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}


def cifar_cfg(**overrides: Any) -> dict[str, Any]:
    """A pretrained cfg without weights: a backbone at 32x32, pixels scaled to [-1, 1], no classifier, Apache-2.0.

    Its input size is fixed, as timm says of every model that holds one position per patch: timm's tools do not try
    others then, unless the model is built with `img_size` or `dynamic_img_size`.
    """
    return {
        "input_size": (3, 32, 32),
        "fixed_input_size": True,
        "num_classes": 0,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_INCEPTION_MEAN,
        "std": IMAGENET_INCEPTION_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **overrides,
    }


def imagenet_cfg(**overrides: Any) -> dict[str, Any]:
    """A pretrained cfg without weights: a 1000-class model at 224x224, ImageNet's mean and std, Apache-2.0."""
    imagenet = {
        "input_size": (3, 224, 224),
        "num_classes": 1000,
        "crop_pct": 0.9,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
    }
    return cifar_cfg(**{**imagenet, **overrides})


def bundled(name: str, **overrides: Any) -> dict[str, dict[str, Any]]:
    """{name: CIFAR cfg with `file`} if the package holds `weights/{name}.safetensors`, else {}.

    Spread into a family's table of cfgs: a tag exists exactly when its file does.
    """
    file = WEIGHTS / f"{name}.safetensors"
    return {name: cifar_cfg(file=str(file), **overrides)} if file.is_file() else {}
