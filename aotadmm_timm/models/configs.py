"""Pretrained configurations shared by the families: data settings, provenance, bundled weights."""

from pathlib import Path
from typing import Any

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD

WEIGHTS = Path(__file__).resolve().parent.parent / "weights"


def model_cfg(first_conv: str = "patch_embed.proj", **overrides: Any) -> dict[str, Any]:
    """A pretrained cfg without weights: a backbone at 32x32, pixels scaled to [-1, 1], no classifier, Apache-2.0."""
    return {
        "input_size": (3, 32, 32),
        "num_classes": 0,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_INCEPTION_MEAN,
        "std": IMAGENET_INCEPTION_STD,
        "first_conv": first_conv,
        "classifier": "head",
        "license": "apache-2.0",
        **overrides,
    }


def imagenet_cfg(**overrides: Any) -> dict[str, Any]:
    """A pretrained cfg without weights: a 1000-class model at 224x224."""
    return model_cfg(**{"input_size": (3, 224, 224), "num_classes": 1000, "crop_pct": 0.9, **overrides})


def bundled(name: str, **cfg: Any) -> dict[str, dict[str, Any]]:
    """{name: cfg with `file`} if `weights/{name}.safetensors` is part of the package, else {}.

    Spread it into a family's table of cfgs: dropping the file into the folder is what activates the tag.
    """
    file = WEIGHTS / f"{name}.safetensors"
    return {name: {**cfg, "file": str(file)}} if file.is_file() else {}
