"""Features of several augmented views of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from aotadmm_timm.data import Images
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.data.photometric import luma
from aotadmm_timm.data.preprocessing import in_channels
from aotadmm_timm.evaluation.features import extract_features


def extract_view_features(
    models: dict[str, nn.Module], images: Images, crop: MultiCrop, *, batch_size: int = 64, num_workers: int = 0
) -> tuple[dict[str, Tensor], Tensor]:
    """Features of the global views of every image by each model, exact over processes.

    The views are a function of (crop.seed, index of the image) alone.

    Args:
        models: by name; each maps images to (B, d).
        crop: its `num_global` views are used, its local ones are not.
    Returns: {name: (V, N, d) float32}, labels (N,).
    """
    crop = crop.replace(num_local=0)
    data: Any = _Indexed(images)
    loader = DataLoader(data, batch_size=batch_size, num_workers=num_workers, collate_fn=_Views(crop))
    features, labels = {}, torch.empty(0)
    for name, model in models.items():
        joined, labels = extract_features(_EveryView(model), loader)
        features[name] = joined.unflatten(1, (crop.num_global, -1)).transpose(0, 1)
    return features, labels


class _EveryView(nn.Module):
    """(B, V, C, H, W) -> (B, V d): the views of an image side by side, so that one row stays one image.

    A model of one channel gets the views in gray.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, views: Tensor) -> Tensor:
        x = views.flatten(0, 1)
        if in_channels(self.model) == 1:
            x = luma(x.transpose(0, 1))[:, None]
        features: Tensor = self.model(x)
        return features.unflatten(0, views.shape[:2]).flatten(1)


class _Indexed(Dataset):
    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        picture, label = self.images[index]
        return picture, label, index


class _Views:
    """A batch of (picture, label, index) -> views (B, V, C, H, W), labels (B,)."""

    def __init__(self, crop: MultiCrop) -> None:
        self.crop = crop

    def __call__(self, items: list[tuple[Any, int, int]]) -> tuple[Tensor, Tensor]:
        index = np.array([i for _, _, i in items])
        if len({picture.size for picture, _, _ in items}) == 1:
            pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture, _, _ in items]))
            views = self.crop(pixels.permute(0, 3, 1, 2), 0, index)[0]
        else:
            crops = [self.crop.crop_picture(picture, 0, i)[0] for picture, _, i in items]
            stacked = torch.from_numpy(np.stack(crops, 1)).float() / 255
            views = self.crop.color([stacked], 0, index)[0]
        return views.transpose(0, 1), torch.tensor([label for _, label, _ in items])
