"""Photometric augmentation of a whole batch of tensors: colour jitter, grey, blur, solarize.

The operations, ranges and probabilities of torchvision's ColorJitter, RandomGrayscale, GaussianBlur and RandomSolarize,
as the DINO family combines them. Each sample has its own factors; the order of the four jitter operations is drawn for
a view instead of for an image, so that a batch is a handful of tensor operations.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DRAWS = 10  # apply jitter, four factors, grey, blur, blur width, solarize, spare

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's and torchvision's grey


@dataclass(frozen=True)
class Photometric:
    """Probabilities and ranges. `jitter` is (brightness, contrast, saturation, hue) at probability `jitter_prob`.

    `blur_sigma` is a range of the Gaussian's width in pixels at 224; it shrinks with the view, as the kernel of the
    published recipes does. `solarize_threshold` is in units of full scale.
    """

    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_prob: float = 0.8
    grey_prob: float = 0.2
    blur_prob: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_prob: float = 0.2
    solarize_threshold: float = 0.5

    @property
    def idle(self) -> bool:
        return not (self.jitter_prob and any(self.jitter)) and not (
            self.grey_prob or self.blur_prob or self.solarize_prob
        )


def grey(x: Tensor) -> Tensor:
    """(n, 3, H, W) -> (n, 1, H, W) luma."""
    return x[:, :1] * _LUMA[0] + x[:, 1:2] * _LUMA[1] + x[:, 2:] * _LUMA[2]


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Hue moved by `shift` (n,) turns, in HSV as torchvision does; x (n, 3, H, W) in [0, 1]."""
    high, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    chroma = high - low
    safe = chroma.clamp(min=1e-8)
    r, g, b = x[:, :1], x[:, 1:2], x[:, 2:]
    hue = torch.where(high == r, (g - b) / safe, torch.where(high == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    hue = hue + 6 * shift[:, None, None, None]
    # HSV to RGB in one expression: channel n is high - chroma * clip(min(k, 4 - k), 0, 1), k = (n + hue) mod 6
    offset = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1)
    k = torch.remainder(offset + hue, 6)
    return high - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with width `sigma` (n,) pixels, truncated at the border and renormalised there."""
    height, width = x.shape[-2:]

    def matrix(size: int) -> Tensor:
        at = torch.arange(size, device=x.device, dtype=x.dtype)
        weight = torch.exp(-0.5 * ((at[:, None] - at[None, :]) / sigma[:, None, None]) ** 2)
        return weight / weight.sum(-1, keepdim=True)

    return torch.matmul(torch.matmul(matrix(height)[:, None], x), matrix(width).transpose(1, 2)[:, None])


def augment(x: Tensor, u: np.ndarray, order: np.ndarray, spec: Photometric) -> Tensor:
    """Augment one view of a batch.

    Args:
        x: (n, 3, H, W) float in [0, 1].
        u: (n, DRAWS) uniform numbers.
        order: permutation of 0 .. 3, the order of brightness, contrast, saturation, hue.
    Returns: (n, 3, H, W) in [0, 1].
    """
    if spec.idle or x.shape[1] != 3:
        return x

    def selected(draw: int, probability: float) -> Tensor:
        return torch.from_numpy(np.flatnonzero(u[:, draw] < probability)).to(x.device)

    which = selected(0, spec.jitter_prob if any(spec.jitter) else 0.0)
    if len(which):
        part = x[which]
        draws = torch.from_numpy(u[:, 1:5]).to(x.device, x.dtype)[which]
        for operation in order:
            strength = spec.jitter[operation]
            if not strength:
                continue
            factor = (2 * draws[:, operation] - 1) * strength
            part = _JITTER[operation](part, factor)
        x = x.index_copy(0, which, part)
    which = selected(5, spec.grey_prob)
    if len(which):
        x = x.index_copy(0, which, grey(x[which]).expand(-1, 3, -1, -1))
    which = selected(6, spec.blur_prob)
    low, high = (s * x.shape[-1] / 224 for s in spec.blur_sigma)
    if len(which) and high > 0.15:  # below, a neighbour's weight is under 1e-9: no blur at all
        sigma = torch.from_numpy(low + u[:, 7] * (high - low)).to(x.device, x.dtype)[which]
        x = x.index_copy(0, which, blur(x[which], sigma.clamp(min=0.05)))
    which = selected(8, spec.solarize_prob)
    if len(which):
        part = x[which]
        x = x.index_copy(0, which, torch.where(part >= spec.solarize_threshold, 1 - part, part))
    return x


def _brightness(x: Tensor, delta: Tensor) -> Tensor:
    return (x * (1 + delta)[:, None, None, None]).clamp_(0, 1)


def _contrast(x: Tensor, delta: Tensor) -> Tensor:
    factor = (1 + delta)[:, None, None, None]
    mean = grey(x).mean((1, 2, 3), keepdim=True)
    return (x * factor + mean * (1 - factor)).clamp_(0, 1)


def _saturation(x: Tensor, delta: Tensor) -> Tensor:
    factor = (1 + delta)[:, None, None, None]
    return (x * factor + grey(x) * (1 - factor)).clamp_(0, 1)


_JITTER = (_brightness, _contrast, _saturation, shift_hue)
