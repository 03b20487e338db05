"""Features of augmented views: fixed by seed and image, one column a view."""

from pathlib import Path

import timm
import torch
from PIL import Image
from torch import nn

from aotadmm_timm.data import load_images
from aotadmm_timm.data.multicrop import DIGITS
from aotadmm_timm.data.preprocessing import in_channels
from aotadmm_timm.evaluation.view_features import extract_view_features

CROP = DIGITS.replace(num_global=3)


def pixel_model() -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten())


def test_views_are_those_of_the_augmentation_whatever_the_batch() -> None:
    images = load_images("digits", "test", num_samples=7)
    models = {"a": pixel_model(), "b": nn.Flatten()}
    features, labels = extract_view_features(models, images, CROP, batch_size=7)
    again, _ = extract_view_features(models, images, CROP, batch_size=2)
    assert features["a"].shape == (3, 7, 48)
    assert features["b"].shape == (3, 7, 3 * 32 * 32)
    assert labels.tolist() == images.labels.tolist()
    pooled = pixel_model()(features["b"].reshape(21, 3, 32, 32)).view(3, 7, 48)
    torch.testing.assert_close(pooled, features["a"])
    for name in models:
        torch.testing.assert_close(again[name], features[name], rtol=0, atol=1e-5)
    assert (features["a"][0] - features["a"][1]).abs().mean() > 0.01  # the views differ
    other, _ = extract_view_features(models, images, CROP.replace(seed=1))
    assert (other["a"] - features["a"]).abs().mean() > 0.01


def test_images_of_several_sizes(tmp_path: Path) -> None:
    digits = load_images("digits", "test", num_samples=4)
    (tmp_path / "a").mkdir()
    for i in range(4):
        digits[i][0].resize((32 + i, 48), Image.Resampling.BILINEAR).save(tmp_path / "a" / f"{i}.png")
    mixed = load_images(str(tmp_path), "train")
    features, _ = extract_view_features({"a": pixel_model()}, mixed, CROP.replace(rotate=0.0))
    assert features["a"].shape == (3, 4, 48)
    assert features["a"].isfinite().all()


def test_a_model_of_one_channel_sees_the_views_in_gray() -> None:
    images = load_images("digits", "test", num_samples=4)
    gray = timm.create_model("test_vit", num_classes=0, img_size=32, in_chans=1)
    assert in_channels(gray) == in_channels(timm.create_model("test_resnet", in_chans=1)) == 1
    seen: list[torch.Tensor] = []
    gray.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    features, _ = extract_view_features({"gray": gray, "pixels": nn.Flatten()}, images, CROP)
    assert features["gray"].shape[:2] == (3, 4)
    colors = features["pixels"].transpose(0, 1).reshape(12, 3, 32, 32)  # view by view within an image
    want = 0.299 * colors[:, 0] + 0.587 * colors[:, 1] + 0.114 * colors[:, 2]
    torch.testing.assert_close(torch.cat(seen), want[:, None])
