"""Random resized crops: boxes drawn for a whole batch, pixels resampled as batched matrix products.

A crop, its antialiased resize and a horizontal flip are linear and separable: out = Y x X^T with one (out, in) matrix
for the rows and one for the columns of each sample. That is Pillow's (and torchvision's antialiased) bilinear filter,
for a batch on any device at once. Rotated crops are not separable and go through `grid_sample`.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

_TRIES = 10
DRAWS = 2 * _TRIES + 3  # areas and ratios of ten tries, two positions, one flip


def draw_boxes(
    u: np.ndarray,
    size: tuple[int, int] | np.ndarray,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    hflip: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Crop boxes with the distribution of torchvision's RandomResizedCrop.

    Args:
        u: (..., DRAWS) uniform numbers.
        size: (H, W) of the images.
        scale: range of the crop's share of the area; ratio: range of width / height (log-uniform).
        hflip: probability of a flip.
    Returns: boxes int64 (..., 4) as (top, left, height, width), and flips bool (...).
    """
    height, width = int(size[0]), int(size[1])
    area = height * width * (scale[0] + u[..., :_TRIES] * (scale[1] - scale[0]))
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    aspect = np.exp(log_ratio[0] + u[..., _TRIES : 2 * _TRIES] * (log_ratio[1] - log_ratio[0]))
    w = np.round(np.sqrt(area * aspect)).astype(np.int64)
    h = np.round(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.argmax(-1)[..., None]
    w = np.take_along_axis(w, first, -1)[..., 0]
    h = np.take_along_axis(h, first, -1)[..., 0]
    top = np.floor(u[..., 2 * _TRIES] * (height - h + 1)).astype(np.int64)
    left = np.floor(u[..., 2 * _TRIES + 1] * (width - w + 1)).astype(np.int64)
    # Ten misfits: the largest central crop within the ratio, as torchvision does.
    none = ~fits.any(-1)
    in_ratio = width / height
    cw = width if in_ratio <= ratio[1] else round(height * ratio[1])
    ch = height if in_ratio >= ratio[0] else round(width / ratio[0])
    w, h = np.where(none, cw, w), np.where(none, ch, h)
    top, left = np.where(none, (height - ch) // 2, top), np.where(none, (width - cw) // 2, left)
    return np.stack([top, left, h, w], -1), u[..., 2 * _TRIES + 2] < hflip


def _resize_matrix(start: Tensor, length: Tensor, in_size: int, out_size: int, flip: Tensor | None) -> Tensor:
    """(n, out, in) weights of the antialiased triangle filter from [start, start + length) to out_size pixels."""
    step = length / out_size
    support = step.clamp(min=1.0)
    out = torch.arange(out_size, device=start.device, dtype=torch.float32)
    center = (out + 0.5) * step[:, None]  # (n, out), relative to start
    pixel = torch.arange(in_size, device=start.device, dtype=torch.float32)
    offset = pixel[None, None, :] - start[:, None, None] + 0.5  # pixel centers relative to start
    weight = (1 - (offset - center[:, :, None]).abs() / support[:, None, None]).clamp(min=0)
    inside = (offset > 0) & (offset < length[:, None, None])  # nothing outside the box is seen
    weight = weight * inside
    weight = weight / weight.sum(-1, keepdim=True)
    if flip is not None:
        weight = torch.where(flip[:, None, None], weight.flip(1), weight)
    return weight


def crop_resize(images: Tensor, boxes: Tensor, flips: Tensor, out_size: int) -> Tensor:
    """V crops of each image of a batch, resized with an antialiased bilinear filter.

    Args:
        images: (n, C, H, W) uint8 or float.
        boxes: (n, V, 4) integers (top, left, height, width); flips: (n, V) bool.
    Returns: float32 (V, n, C, out_size, out_size) in the units of `images`; not contiguous.
    """
    n, channels, height, width = images.shape
    views = boxes.shape[1]
    boxes = boxes.flatten(0, 1).float()
    rows = _resize_matrix(boxes[:, 0], boxes[:, 2], height, out_size, None)
    columns = _resize_matrix(boxes[:, 1], boxes[:, 3], width, out_size, flips.flatten())
    # Rows of all views in one product, then columns; with channels between rows and columns neither needs a copy.
    tall = images.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format).reshape(n, height, -1)
    flat = torch.bmm(rows.reshape(n, views * out_size, height), tall)
    out = torch.bmm(flat.reshape(n * views, out_size * channels, width), columns.transpose(1, 2))
    return out.reshape(n, views, out_size, channels, out_size).permute(1, 0, 3, 2, 4)


def crop_rotate(images: Tensor, boxes: Tensor, flips: Tensor, angles: Tensor, out_size: int) -> Tensor:
    """As `crop_resize`, with each box turned by `angles` (n, V) radians about its center.

    Plain bilinear sampling, the border repeated; meant for images that are not shrunk.
    """
    n, channels, height, width = images.shape
    boxes = boxes.float()
    half = boxes[..., 2:] / 2
    center = boxes[..., :2] + half
    cos, sin = angles.cos(), angles.sin()
    sign = 1 - 2 * flips.float()
    theta = torch.stack(
        [
            cos * half[..., 1] * sign * 2 / width,
            -sin * half[..., 0] * 2 / width,
            center[..., 1] * 2 / width - 1,
            sin * half[..., 1] * sign * 2 / height,
            cos * half[..., 0] * 2 / height,
            center[..., 0] * 2 / height - 1,
        ],
        -1,
    ).reshape(n, -1, 2, 3)
    views = []
    for v in range(boxes.shape[1]):  # one by one: grid_sample would want a copy of the images for each view
        grid = F.affine_grid(theta[:, v], [n, channels, out_size, out_size], align_corners=False)
        views.append(F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False))
    return torch.stack(views)


def crop_picture(image: Image.Image, box: np.ndarray, flip: bool, out_size: int) -> np.ndarray:
    """The same crop of one picture of any size, by Pillow: uint8 (C, out_size, out_size)."""
    top, left, height, width = (int(x) for x in box)
    # crop first: `resize(box=...)` would let the filter see pixels outside the box
    view = image.crop((left, top, left + width, top + height)).resize((out_size, out_size), Image.Resampling.BILINEAR)
    if flip:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(view).transpose(2, 0, 1)
