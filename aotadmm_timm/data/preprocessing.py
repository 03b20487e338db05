"""Images as a model wants to see them: its own size, interpolation, mean and std."""

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image


def in_channels(model: Any) -> int:
    """Channels of a model's images: what it says itself, else what its first convolution takes, else 3."""
    if own := getattr(model, "in_chans", 0):
        return int(own)
    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv")
    if first:  # one name, or several of which each sees the images
        conv = model.get_submodule(first if isinstance(first, str) else first[0])
        return int(getattr(conv, "in_channels", 3))
    from timm.data import resolve_data_config  # here: worker processes that start anew import this file, too

    return int(resolve_data_config(model=model)["input_size"][0])


def data_config(model: torch.nn.Module) -> dict[str, Any]:
    """timm's data configuration of a model, with size, mean and std for the channels that it really has."""
    from timm.data import resolve_data_config

    config: dict[str, Any] = resolve_data_config(model=model)
    channels = in_channels(model)
    if len(config["mean"]) != channels:  # a configuration for RGB, a model for another number of channels
        config["mean"], config["std"] = (((sum(v) / len(v)),) * channels for v in (config["mean"], config["std"]))
    config["input_size"] = (channels, *config["input_size"][1:])
    return config


def preprocessing(
    model: torch.nn.Module, *, img_size: int | tuple[int, int] | None = None
) -> Callable[[Image.Image], torch.Tensor]:
    """timm's evaluation transform of a model: RGB image -> float tensor (C, H, W).

    The size is the model's present one (after `set_input_size` or `img_size=`), not its pretrained configuration's.
    """
    from timm.data import create_transform

    config = data_config(model)
    size = img_size or getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        config["input_size"] = (config["input_size"][0], height, width)
        if max(height, width) <= 64:  # small images are whole pictures: no border is cut off
            config["crop_pct"] = 1.0
    return create_transform(**config, is_training=False)
