"""Shape checks shared by the measurements on features."""

from __future__ import annotations

from torch import Tensor


def check_features(z: Tensor, y: Tensor | None, name: str) -> None:
    """Refuse anything but finite features (N, d), N >= 1, with labels (N,)."""
    if z.ndim != 2 or len(z) == 0:
        raise ValueError(f"{name} features must be (N, d) with N >= 1, got {tuple(z.shape)}")
    if y is not None and y.shape != z.shape[:1]:
        raise ValueError(f"{name} labels must be ({len(z)},), got {tuple(y.shape)}")
    if not z.isfinite().all():
        raise ValueError(f"{name} features {tuple(z.shape)} hold NaN or infinite values")


def check_train_test(train_z: Tensor, train_y: Tensor, test_z: Tensor, test_y: Tensor) -> None:
    """Both sets well-formed and of one width."""
    check_features(train_z, train_y, "train")
    check_features(test_z, test_y, "test")
    if train_z.shape[1] != test_z.shape[1]:
        raise ValueError(
            f"train features {tuple(train_z.shape)} and test features {tuple(test_z.shape)} differ in width"
        )
