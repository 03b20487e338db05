"""The eight data sets of frozen transfer (lambda-JEPA, Appendix C.1), by torchvision name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import ConcatDataset

from aotadmm_timm.data import Images, load_images
from aotadmm_timm.data.library import LibraryImages
from aotadmm_timm.errors import UserError

# name: (torchvision class, splits of train, splits of test); timm knows the CIFARs itself
_TORCHVISION = {
    "torch/dtd": ("DTD", ("train", "val"), ("test",)),
    "torch/fgvc_aircraft": ("FGVCAircraft", ("trainval",), ("test",)),
    "torch/stanford_cars": ("StanfordCars", ("train",), ("test",)),
    "torch/flowers102": ("Flowers102", ("train", "val"), ("test",)),
    "torch/food101": ("Food101", ("train",), ("test",)),
    "torch/oxford_iiit_pet": ("OxfordIIITPet", ("trainval",), ("test",)),
}
TRANSFER = ("torch/cifar10", "torch/cifar100", *_TORCHVISION)


def load_transfer(
    name: str,
    split: str,
    *,
    root: str | Path | None = None,
    download: bool = False,
    classes: Sequence[str] | None = None,
) -> Images:
    """A transfer data set, "train" or "test": one of `TRANSFER`, or anything that `load_images` knows.

    Train is all that is not test (train and validation together, where there are both), as in Ericsson et al., 2021.
    Raises: UserError that says why the data set cannot be had.
    """
    if name not in _TORCHVISION:
        return load_images(name, split, root=root, download=download, classes=classes)
    datasets = importlib.import_module("torchvision.datasets")  # no type hints
    class_name, *splits = _TORCHVISION[name]
    folder = Path(root) if root else Path.home() / ".cache" / "torchvision"
    try:
        if download:
            folder.mkdir(parents=True, exist_ok=True)
        parts: list[Any] = [
            getattr(datasets, class_name)(str(folder), split=part, download=download)
            for part in splits[split == "test"]
        ]
    except (RuntimeError, OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name}: not to be had under {folder} ({reason})") from None
    joined: ConcatDataset = ConcatDataset(parts)
    labels = [int(label) for part in parts for label in _labels(part)]
    names = getattr(parts[0], "classes", None) or [str(label) for label in range(max(labels) + 1)]
    return LibraryImages(name, split, labels, names, joined)


def _labels(part: Any) -> Sequence[int]:
    """Labels of a torchvision data set, without decoding its images."""
    if hasattr(part, "_labels"):
        return part._labels
    return [label for _, label in part._samples]
