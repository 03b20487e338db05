"""Token statistics of all heads in few passes over memory, for CPUs."""

from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.autograd import PLAIN_OPERATIONS, once_only

# The published code's: square of the smallest norm that is divided by, and what is added to a head's count of tokens.
SMALLEST_SQUARE = 1e-24
SMALLEST_SHARE = 1e-8

# Elements in a block of images: its two or three float32 buffers stay in a core's cache. From 2^16 to 2^18 the time is
# level; as one block it is half as long again.
_BLOCK = 2**17


@torch.jit.unused
def fused_token_statistics(w: Tensor, temperature: Tensor) -> Tensor:
    """`token_statistics.token_statistics` on CPU: a few images at a time, in float32, with a backward of its own.

    w itself and two numbers per token and head are kept for it. Against the same formula under autograd, forward and
    backward take less than half of the time (tests/benchmarks/token_statistics.py).

    Args:
        w: (B, N, K, p), in any floating-point dtype.
        temperature: (K,).
    Returns: (B, N, K, p), in the dtype of w.
    """
    return _FusedTokenStatistics.apply(w, temperature)


class _FusedTokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, temperature: Tensor) -> Tensor:
        work = torch.float64 if w.dtype == torch.float64 else torch.float32
        images, tokens, heads, axes = w.shape
        scale = temperature.to(work)
        energies, shares = (torch.empty((images, tokens, heads), dtype=work) for _ in range(2))
        inverses, dampings = (torch.empty((images, 1, heads, axes), dtype=work) for _ in range(2))
        out = torch.empty((images, tokens, heads, axes), dtype=w.dtype)
        for x, energy, pi, inverse, damping, y in _blocks(w, energies, shares, inverses, dampings, out):
            x = x.to(work)
            square = x * x
            torch.sum(square, 1, keepdim=True, out=inverse).clamp_min_(SMALLEST_SQUARE).reciprocal_()
            buffer = square * inverse
            torch.sum(buffer, -1, out=energy)
            pi.copy_(torch.softmax(scale * energy, -1))
            torch.mul(square, pi.unsqueeze(-1), out=buffer)
            torch.sum(buffer, 1, keepdim=True, out=damping).div_(_count(pi)).add_(1).reciprocal_()
            torch.mul(x, pi.neg().unsqueeze(-1), out=buffer)
            y.copy_(buffer.mul_(damping))
        ctx.save_for_backward(w, energies, shares, inverses, dampings, temperature)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        once_only("token statistics on CPU", PLAIN_OPERATIONS)
        *saved, temperature = ctx.saved_tensors
        work = saved[1].dtype
        scale = temperature.to(work)
        grad_w, grad_scale = torch.empty_like(saved[0]), torch.zeros_like(scale)
        for x, energy, pi, inverse, damping, g, out in _blocks(*saved, grad, grad_w):
            x, g = x.to(work), g.to(work)
            share = pi.unsqueeze(-1)
            # y = -pi x D, D = 1 / (1 + m):  dm = D^2 sum_n pi x g, and each token has its share of m = sum pi x^2 / n
            product = x * g
            buffer = product * share
            moment = damping.square().mul_(buffer.sum(1, keepdim=True)).div_(_count(pi))
            # dpi = -sum_p D x g + dm / n (x^2 - m)
            square = x * x
            torch.mul(square, moment, out=buffer).sub_(product.mul_(damping))
            grad_pi = buffer.sum(-1) - (moment * (1 / damping - 1)).sum(-1)
            logit = pi * (grad_pi - (pi * grad_pi).sum(-1, keepdim=True))
            grad_scale += (logit * energy).sum((0, 1))
            # energy = sum_p x^2 / s, s = sum_n x^2:  dx^2 = de / s - 1 / s^2 sum_n de x^2
            logit = (scale * logit).unsqueeze(-1)
            total = square.mul_(logit).sum(1, keepdim=True).mul_(inverse).mul_(inverse)  # 1 / s^2 may overflow
            # dx = 2 x (pi dm / n + dx^2) - pi D g
            torch.mul(share, moment, out=buffer).addcmul_(logit, inverse).sub_(total).mul_(x).mul_(2)
            out.copy_(buffer.addcmul_(torch.mul(g, share, out=product), damping, value=-1))
        return grad_w, grad_scale.to(temperature.dtype)


def _count(pi: Tensor) -> Tensor:
    """Tokens of each head, (B, N, K) -> (B, 1, K, 1)."""
    return (pi.sum(1, keepdim=True) + SMALLEST_SHARE).unsqueeze(-1)


def _blocks(first: Tensor, *others: Tensor) -> Any:
    """Tuples of the same images of every tensor (B, ...)."""
    images = max(1, _BLOCK // max(1, first[0].numel()) if len(first) else 1)
    return zip(*(t.split(images) for t in (first, *others)), strict=True)
