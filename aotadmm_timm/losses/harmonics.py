"""Sums of cos(j x) and sin(j x) over samples, or over j, as small matrix products."""

from functools import cache

import torch
from torch import Tensor


class Harmonics:
    """cos(j x) and sin(j x), j = 1..num, of which only sums are needed.

    All of them follow from u = exp(i x) as u^(r + s q): few small powers |r| <= b times few multiples q of the stride
    s = 2 b + 1. Sums over samples are then inner products between the two short lists, and sums over j are bilinear in
    them: batched matrix products in place of `num` passes over the data. Every factor has modulus one, so errors stay
    at a few roundings (a Chebyshev recurrence loses j^2 of them near x = 0).
    """

    def __init__(self, num: int, rows: int, samples: int, like: Tensor) -> None:
        self.num_small, self.num_large = _split(num)
        # (rows, list, samples): entry 0 is the constant 1, entries 2 r - 1 and 2 r are cosine and sine
        self.small = like.new_empty(rows, 2 * self.num_small + 1, samples)
        self.large = like.new_empty(rows, 2 * self.num_large + 1, samples)
        self.scratch = torch.empty_like(self.large)
        self.small[:, 0] = self.large[:, 0] = 1
        self.mixing = _mixing(num, like.dtype, like.device)

    def sums(self, x: Tensor) -> Tensor:
        """Sums over samples: (R, samples) -> (R, 2 num), cosines before sines; R at most the rows of the work space."""
        small, large, spare = (powers[: len(x)] for powers in (self.small, self.large, self.scratch))
        u = _pair(small, 1)
        torch.cos(x, out=u[0])
        torch.sin(x, out=u[1])
        for r in range(2, self.num_small + 1):
            _power(r, _pair(small, r // 2), _pair(small, r - r // 2), out=_pair(small, r))
        if self.num_large:  # u^(2 b + 1) = (u^b)^2 u
            _power(2, _pair(small, self.num_small), _pair(small, self.num_small), out=_pair(spare, 1))
            _power(1, _pair(spare, 1), u, out=_pair(large, 1))
        for q in range(2, self.num_large + 1):
            _power(q, _pair(large, q // 2), _pair(large, q - q // 2), out=_pair(large, q))
        return torch.bmm(small, large.mT).flatten(1) @ self.mixing.mT

    def combine(self, coefficients: Tensor, out: Tensor) -> None:
        """Sums over j at the x of the last `sums`: (R, 2 num), cosines before sines -> out (R, samples)."""
        small, large, scratch = (powers[: len(out)] for powers in (self.small, self.large, self.scratch))
        products = (coefficients @ self.mixing).unflatten(1, (small.shape[1], large.shape[1]))
        torch.bmm(products.mT, small, out=scratch)
        out.copy_(scratch[:, 0])
        for index in range(1, large.shape[1]):
            out.addcmul_(scratch[:, index], large[:, index])


Pair = tuple[Tensor, Tensor]


def _pair(powers: Tensor, index: int) -> Pair:
    return powers[:, 2 * index - 1], powers[:, 2 * index]


def _power(exponent: int, a: Pair, b: Pair, out: Pair) -> None:
    """Product a b of powers of one u of modulus one, (cosine, sine) each; they are equal if the exponent is even."""
    if exponent % 2 == 0:
        torch.addcmul(a[0].new_ones(()), a[1], a[1], value=-2, out=out[0])
        torch.addcmul(a[0].new_zeros(()), a[0], a[1], value=2, out=out[1])
    else:
        torch.mul(a[0], b[0], out=out[0]).addcmul_(a[1], b[1], value=-1)
        torch.mul(a[1], b[0], out=out[1]).addcmul_(a[0], b[1])


def _split(num: int) -> tuple[int, int]:
    """The b small powers and the multiples of 2 b + 1 that reach `num` with the fewest arrays: 3 and 2 for 16."""
    candidates = [(b, max(0, -(-(num - b) // (2 * b + 1)))) for b in range(1, num + 1)]
    return min(candidates, key=lambda split: (sum(split), split[1]))


@cache
def _mixing(num: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(2 num, small * large) of 0 and +-1: every cos(j x), then every sin(j x), from products of the two lists."""
    num_small, num_large = _split(num)
    mixing = torch.zeros(2, num, 2 * num_small + 1, 2 * num_large + 1, dtype=dtype)
    for j in range(1, num + 1):
        q = (j + num_small) // (2 * num_small + 1)
        r = j - q * (2 * num_small + 1)
        sign = 1 if r > 0 else -1
        cos_r, sin_r, cos_q, sin_q = max(2 * abs(r) - 1, 0), 2 * abs(r), max(2 * q - 1, 0), 2 * q
        mixing[0, j - 1, cos_r, cos_q] = 1
        if q:
            mixing[1, j - 1, cos_r, sin_q] = 1
        if r:
            mixing[1, j - 1, sin_r, cos_q] = sign
        if r and q:
            mixing[0, j - 1, sin_r, sin_q] = -sign
    return mixing.view(2 * num, -1).to(device)
