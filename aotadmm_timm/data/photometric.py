"""Photometric augmentation of a whole batch of tensors: color jitter, gray, blur, solarize.

The operations, ranges and probabilities of torchvision's ColorJitter, RandomGrayscale, GaussianBlur and RandomSolarize,
as the DINO family combines them. Each sample has its own factors; the order of the four jitter operations is drawn for
a view and an epoch instead of for an image, so that a batch is a handful of tensor operations.

Everything works in place on *planes*, float (3, n, P): channels first, so that red, green and blue of a batch are three
contiguous matrices, and P = H W pixels. What is cheap is done to all samples, with neutral factors where a sample is
not to change; blur and the like only touch the samples they are for.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DRAWS = 10  # apply jitter, four factors, gray, blur, blur width, solarize, spare

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's and torchvision's gray


@dataclass(frozen=True)
class Photometric:
    """Probabilities and ranges. `jitter` is (brightness, contrast, saturation, hue) at probability `jitter_prob`.

    `blur_sigma` is a range of the Gaussian's width in pixels at 224; it shrinks with the view, as the kernel of the
    published recipes does. `solarize_threshold` is in units of full scale.
    """

    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_prob: float = 0.8
    gray_prob: float = 0.2
    blur_prob: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_prob: float = 0.2
    solarize_threshold: float = 0.5

    @property
    def idle(self) -> bool:
        return not (self.jitter_prob and any(self.jitter)) and not (
            self.gray_prob or self.blur_prob or self.solarize_prob
        )


def augment(x: Tensor, size: tuple[int, int], u: np.ndarray, order: np.ndarray, spec: Photometric) -> None:
    """Augment one view of a batch in place.

    Args:
        x: planes (3, n, H W) in [0, 1]; with another number of channels nothing is done.
        size: (H, W).
        u: (n, DRAWS) uniform numbers.
        order: permutation of 0 .. 3, the order of brightness, contrast, saturation, hue.
    """
    if spec.idle or len(x) != 3:
        return
    if spec.jitter_prob and any(spec.jitter):
        strength = np.where(u[:, :1] < spec.jitter_prob, np.array(spec.jitter), 0.0)
        change = torch.from_numpy((2 * u[:, 1:5] - 1) * strength).to(x.device, x.dtype)
        for operation in order:
            if spec.jitter[operation]:
                _JITTER[operation](x, change[:, operation, None])

    def selected(draw: int, probability: float) -> Tensor:
        return torch.from_numpy(np.flatnonzero(u[:, draw] < probability)).to(x.device)

    if len(which := selected(5, spec.gray_prob)):
        x.index_copy_(1, which, luma(x.index_select(1, which)).expand(3, -1, -1))
    low, high = (s * size[1] / 224 for s in spec.blur_sigma)
    if high > 0.15 and len(which := selected(6, spec.blur_prob)):  # below, a neighbor's weight is under 1e-9
        sigma = torch.from_numpy(low + u[:, 7] * (high - low)).to(x.device, x.dtype)[which]
        x.index_copy_(1, which, blur(x.index_select(1, which), size, sigma.clamp(min=0.05)))
    if len(which := selected(8, spec.solarize_prob)):
        part = x.index_select(1, which)
        x.index_copy_(1, which, torch.where(part >= spec.solarize_threshold, 1 - part, part))


def luma(x: Tensor) -> Tensor:
    """Planes (3, n, ...) -> gray (n, ...)."""
    return torch.mul(x[0], _LUMA[0]).add_(x[1], alpha=_LUMA[1]).add_(x[2], alpha=_LUMA[2])


def blur(x: Tensor, size: tuple[int, int], sigma: Tensor) -> Tensor:
    """Gaussian blur of planes with width `sigma` (n,) pixels, truncated at the border and renormalized there."""

    def matrix(length: int) -> Tensor:
        at = torch.arange(length, device=x.device, dtype=x.dtype)
        weight = torch.exp(-0.5 * ((at[:, None] - at[None, :]) / sigma[:, None, None]) ** 2)
        return weight / weight.sum(-1, keepdim=True)

    pixels = x.unflatten(2, size)
    return torch.matmul(torch.matmul(matrix(size[0]), pixels), matrix(size[1]).transpose(1, 2)).flatten(2)


# The four jitter operations change planes (3, n, P) in place; `change` (n, 1) is 0 where a sample stays as it is.


def brightness(x: Tensor, change: Tensor) -> None:
    x.mul_(1 + change).clamp_(0, 1)


def contrast(x: Tensor, change: Tensor) -> None:
    mean = luma(x.mean(2, keepdim=True))
    torch.lerp(mean, x, 1 + change, out=x).clamp_(0, 1)


def saturation(x: Tensor, change: Tensor) -> None:
    torch.lerp(luma(x), x, 1 + change, out=x).clamp_(0, 1)


def hue(x: Tensor, change: Tensor) -> None:
    """Turn the hue by `change` of a full circle, in HSV as torchvision does."""
    r, g, b = x
    high, low = torch.maximum(r, g), torch.minimum(r, g)
    torch.maximum(high, b, out=high)
    torch.minimum(low, b, out=low)
    chroma = high - low
    red, green = r == high, g == high
    sixth = torch.where(red, g - b, torch.where(green, b - r, r - g))  # of a circle, once divided by the chroma
    sixth.div_(chroma.clamp(min=1e-8))
    sixth.add_(torch.where(red, 0.0, torch.where(green, 2.0, 4.0))).add_(6 * change).remainder_(6)
    # back: each channel is low + chroma * (a trapezoid of the hue, 1 around the channel's own color)
    torch.sub(sixth, 3, out=r).abs_().sub_(1)
    torch.sub(sixth, 2, out=g).abs_().neg_().add_(2)
    torch.sub(sixth, 4, out=b).abs_().neg_().add_(2)
    torch.addcmul(low, chroma, x.clamp_(0, 1), out=x)


_JITTER = (brightness, contrast, saturation, hue)
