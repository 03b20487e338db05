"""Kernels of tied attention side by side, forward and backward: the table behind `dispatch.subspace_attention`.

    python tests/benchmarks/attention.py [--threads 2] [--device cuda]

Milliseconds for about 9,000 tokens in 6 heads of 64, best of the rounds. `chosen` is what that function takes.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from aotadmm_timm.layers.dispatch import subspace_attention
from aotadmm_timm.layers.tied_attention import explicit_attention, tied_attention

LENGTHS = (5, 17, 32, 65, 197)
SCALE = 0.125


def explicit(w: Tensor) -> Tensor:
    return explicit_attention(w, SCALE)


def tied(w: Tensor) -> Tensor:
    return tied_attention(w, SCALE)


def fused(w: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(w, w, w, scale=SCALE)


def chosen(w: Tensor) -> Tensor:
    return subspace_attention(w, SCALE)


FORMS: tuple[Callable[[Tensor], Tensor], ...] = (explicit, tied, fused, chosen)


def milliseconds(form: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """From rows (B, N, 6 * 64) to rows, with the copies that a layer makes."""
    rows.grad = None
    began = time.perf_counter()
    w = rows.unflatten(-1, (6, 64)).transpose(1, 2)
    form(w).transpose(1, 2).flatten(2).sum().backward()
    if rows.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads")
    print(f"{'precision':10}{'tokens':>7}" + "".join(f"{form.__name__:>10}" for form in FORMS))
    for dtype in (torch.bfloat16, torch.float32):
        for tokens in LENGTHS:
            rows = torch.randn(8704 // tokens, tokens, 384, device=args.device).to(dtype).requires_grad_()
            best = dict.fromkeys(FORMS, float("inf"))
            for _ in range(args.rounds):
                for form in FORMS:
                    best[form] = min(best[form], milliseconds(form, rows))
            name = str(dtype).removeprefix("torch.")
            print(f"{name:10}{tokens:7}" + "".join(f"{best[form]:10.2f}" for form in FORMS), flush=True)


if __name__ == "__main__":
    main()
