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
        self.num = num
        self.num_small, self.num_large = _split(num)
        # (rows, list, samples): entry 0 is the constant 1, entries 2 r - 1 and 2 r are cosine and sine
        self.small = like.new_ones(rows, 2 * self.num_small + 1, samples)
        self.large = like.new_ones(rows, 2 * self.num_large + 1, samples)
        self.scratch = torch.empty_like(self.large)
        self.mixing = _mixing(num, like.dtype, like.device)

    def sums(self, x: Tensor) -> Tensor:
        """Sums over samples: (R, samples) -> (R, 2 num), cosines before sines; R at most the rows of the work space."""
        self.rows = len(x)
        small, large = self.small[: self.rows], self.large[: self.rows]
        u = _pair(small, 1)
        torch.cos(x, out=u[0])
        torch.sin(x, out=u[1])
        for r in range(2, self.num_small + 1):
            _multiply(_pair(small, r - 1), u, out=_pair(small, r))
        if self.num_large:
            stride = _pair(large, 1)
            last = _pair(small, self.num_small)
            _multiply(last, last, out=_pair(self.scratch[: self.rows], 1))
            _multiply(_pair(self.scratch[: self.rows], 1), u, out=stride)
            for q in range(2, self.num_large + 1):
                _multiply(_pair(large, q - 1), stride, out=_pair(large, q))
        return torch.bmm(small, large.mT).flatten(1) @ self.mixing.mT

    def combine(self, coefficients: Tensor, out: Tensor) -> None:
        """Sums over j at the x of the last `sums`: (R, 2 num), cosines before sines -> out (R, samples)."""
        small, large, scratch = self.small[: self.rows], self.large[: self.rows], self.scratch[: self.rows]
        products = (coefficients @ self.mixing).unflatten(1, (small.shape[1], large.shape[1]))
        torch.bmm(products.mT, small, out=scratch)
        torch.sum(scratch.mul_(large), 1, out=out)


Pair = tuple[Tensor, Tensor]


def _pair(powers: Tensor, index: int) -> Pair:
    return powers[:, 2 * index - 1], powers[:, 2 * index]


def _multiply(a: Pair, b: Pair, out: Pair) -> None:
    """Product of two complex numbers of modulus one, (cosine, sine) each; `out` is neither factor."""
    torch.mul(a[0], b[0], out=out[0])
    out[0].addcmul_(a[1], b[1], value=-1)
    torch.mul(a[1], b[0], out=out[1])
    out[1].addcmul_(a[0], b[1])


def _split(num: int) -> tuple[int, int]:
    """The b small powers and the multiples of 2 b + 1 that reach `num` with the fewest arrays: 3 and 2 for 16."""
    candidates = [(b, max(0, -(-(num - b) // (2 * b + 1)))) for b in range(1, num + 1)]
    return min(candidates, key=lambda split: (sum(split), split))


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
