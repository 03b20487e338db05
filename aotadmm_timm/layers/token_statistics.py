"""Token statistics: what attention needs to know of all tokens, in linear time, without products of their pairs.

"Token Statistics Transformer: Linear-Time Attention via Variational Rate Reduction", arXiv:2412.17810.
"""

import torch.nn.functional as F
from torch import Tensor

from aotadmm_timm.layers.fused_token_statistics import SMALLEST_SHARE, SMALLEST_SQUARE
from aotadmm_timm.precision import at_least_float32


def membership(w: Tensor, temperature: Tensor, smallest: float = SMALLEST_SQUARE) -> Tensor:
    """Pi: the share of every token that belongs to each head.  (B, N, K, p), (K,) -> (B, N, K), sums over K are 1.

    Pi = softmax over k of temperature_k sum_p w_p^2 / (sum over the tokens of w_p^2)   (arXiv:2412.17810, Eq. 10)
    """
    square = at_least_float32(w).square()
    energy = (square / square.sum(1, keepdim=True).clamp_min(smallest)).sum(-1)
    return (temperature * energy).softmax(-1)


def second_moment(w: Tensor, pi: Tensor, smallest: float = SMALLEST_SHARE) -> Tensor:
    """Second moment of each head's tokens along each of its axes, sum_n Pi w^2 / sum_n Pi.  -> (B, K, p)."""
    square = at_least_float32(w).square()
    return (pi.unsqueeze(-1) * square).sum(1) / (pi.sum(1) + smallest).unsqueeze(-1)


def token_statistics(w: Tensor, temperature: Tensor, dropout: float = 0.0) -> Tensor:
    """-Pi w D with D = 1 / (1 + m), Pi the `membership` and m the `second_moment`   (arXiv:2412.17810)

    For Pi held fixed it is minus the gradient of N times `theory.variational_compression_rate` in w: a step of descent
    on what the tokens of each head cost to code, at a cost linear in the number of tokens.

    Args:
        w: projected tokens (B, N, K, p), tokens before heads.
        temperature: one factor per head, (K,).
        dropout: probability with which entries of D are dropped (0 outside training).
    Returns: (B, N, K, p), in the precision of w; statistics are at least float32.
    """
    pi = membership(w, temperature)
    damping = 1 / (1 + second_moment(w, pi))
    if dropout > 0.0:
        damping = F.dropout(damping, dropout)
    return (-at_least_float32(w) * pi.unsqueeze(-1) * damping.unsqueeze(1)).to(w.dtype)
