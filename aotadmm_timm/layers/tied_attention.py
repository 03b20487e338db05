"""Attention whose queries, keys and values are one projection: written out, and for short sequences on CPU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotadmm_timm.autograd import PLAIN_OPERATIONS, once_only
from aotadmm_timm.precision import at_least_float32

_KEEP = 8  # tokens up to which the weights are kept for backward


def explicit_attention(w: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale * w w^T) w for every head, product by product.  (B, K, N, p) -> (B, K, N, p)."""
    flat = w.flatten(0, 1)  # one copy of the strided heads instead of one for each product
    attention = torch.bmm(scale * flat, flat.transpose(-2, -1)).softmax(dim=-1)
    if dropout > 0.0:
        attention = F.dropout(attention, dropout)
    return torch.bmm(attention, flat).view(w.shape)


@torch.jit.unused
def tied_attention(w: Tensor, scale: float) -> Tensor:
    """softmax(scale * w w^T) w for every head, with a backward of its own.  (B, K, N, p) -> (B, K, N, p).

    What it saves, against the same products under autograd, at 5 to 17 tokens half of the time:
    w w^T is symmetric, so its softmax over columns is the transpose of the one over rows, and over columns it is
    several times faster at these lengths, where a row is shorter than a vector register; the gradients of the two
    factors of w w^T are one product with dS + dS^T instead of two. Only w is kept; the weights are computed again, up
    to 8 tokens (where they are a tenth of w) kept too.
    """
    return _TiedAttention.apply(w, scale)


class _TiedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, scale: float) -> Tensor:
        shape = w.shape
        w = w.reshape(-1, *shape[-2:])
        ctx.scale = scale
        with torch.autocast("cpu", enabled=False):  # the precision is that of w
            weights = _transposed_weights(w, scale).to(w.dtype)
            ctx.save_for_backward(w, *([weights] if shape[-2] <= _KEEP else []))
            return torch.bmm(weights.mT, w).view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        once_only("attention of short sequences on CPU", PLAIN_OPERATIONS)
        w, *kept = ctx.saved_tensors
        shape = grad.shape
        grad = grad.reshape(w.shape)
        with torch.autocast("cpu", enabled=False):
            grad_weights = at_least_float32(torch.bmm(w, grad.mT))
            weights = at_least_float32(kept[0]) if kept else _transposed_weights(w, ctx.scale)
            transposed = weights.to(w.dtype)
            grad_logits = grad_weights.sub_((weights * grad_weights).sum(1, keepdim=True)).mul_(weights)
            symmetric = (grad_logits + grad_logits.mT).mul_(ctx.scale).to(w.dtype)
            return torch.baddbmm(torch.bmm(transposed, grad), symmetric, w).view(shape), None


def _transposed_weights(w: Tensor, scale: float) -> Tensor:
    """softmax over columns of scale * w w^T, (B K, N, p) -> (B K, N, N): its columns sum to one."""
    return at_least_float32(torch.bmm(w, w.mT)).mul_(scale).softmax(1)
