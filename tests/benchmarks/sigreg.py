"""Time and memory of SIGReg, forward and backward, against the published formula in the same run.

    python tests/benchmarks/sigreg.py [--threads 2] [--compile] [--device cuda]

The published formula is eager: a cosine and a sine for every projection and knot, all kept for backward. `--compile`
adds a row where torch.compile fuses it; `sigreg` has no compiled form, its tiles compiled took 20 % longer. The two
matrix products, by the directions and by their transpose, are what no SIGReg does without.

Variants take turns; the best of their rounds counts, as other work on the machine only adds time. With `--threads 1` it
is CPU time, which other work hardly disturbs. Memory is the growth of the process's peak during one call, each variant
in a process of its own (on a GPU: allocated).
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable

import torch
from memory import high_water_mib
from torch import Tensor

from aotadmm_timm.losses import SIGReg, sigreg
from aotadmm_timm.losses.directions import unit_directions

Variant = Callable[[Tensor, Tensor], Tensor]
CASES = [((2048, 512), 1024), ((8, 256, 64), 1024), ((8, 256, 64), 256)]  # z (..., N, D), slices


def published(z: Tensor, directions: Tensor) -> Tensor:
    t = torch.linspace(0, 3, 17, dtype=z.dtype, device=z.device)
    phi = torch.exp(-t.square() / 2)
    weight = phi * 3 / 8
    weight[[0, -1]] /= 2
    phase = (z @ directions)[..., None] * t
    gap = (phase.cos().mean(-3) - phi).square() + phase.sin().mean(-3).square()
    return z.shape[-2] * (gap @ weight).mean()


def matrix_products(z: Tensor, directions: Tensor) -> Tensor:
    return (z @ directions).sum()


VARIANTS: dict[str, Variant] = {
    "published, eager": published,
    "sigreg": sigreg,
    "SIGReg (draws its directions)": lambda z, directions: SIGReg(directions.shape[1])(z, 0),
    "the two matrix products": matrix_products,
}


def inputs(case: int, device: str) -> tuple[Tensor, Tensor]:
    shape, num_slices = CASES[case]
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(shape, generator=generator)
    return z.to(device).requires_grad_(), unit_directions(shape[-1], num_slices, 0, 0).to(device)


def call(variant: Variant, z: Tensor, directions: Tensor) -> Tensor:
    z.grad = None
    variant(z, directions).backward()
    if z.is_cuda:
        torch.cuda.synchronize()
    assert z.grad is not None
    return z.grad


def seconds(variants: dict[str, Variant], case: int, device: str, rounds: int) -> dict[str, float]:
    z, directions = inputs(case, device)
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(variants, float("inf"))
    for turn in range(rounds + 1):
        for name, variant in variants.items():
            began = clock()
            call(variant, z, directions)
            if turn:  # the first is a warm-up
                best[name] = min(best[name], clock() - began)
    return best


def peak_mib(name: str, case: int, device: str, threads: int) -> float:
    torch.set_num_threads(threads)
    z, directions = inputs(case, device)
    small = torch.randn(8, 4, device=device, requires_grad=True)
    call(VARIANTS[name], small, unit_directions(4, 8, 0, 0).to(device))  # libraries allocate what they need
    if device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(VARIANTS[name], z, directions)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = high_water_mib()
    call(VARIANTS[name], z, directions)
    return high_water_mib() - before


def relative_error(case: int, device: str) -> float:
    """Of the float32 gradient, against the published formula in float64, on 32 slices."""
    z, directions = inputs(case, device)
    directions = directions[:, :32]
    exact = call(published, z.detach().double().requires_grad_(), directions.double())
    return float((call(sigreg, z, directions).double() - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    variants = dict(VARIANTS)
    if args.compile:
        variants["published, compiled"] = torch.compile(published)
    context = multiprocessing.get_context("spawn")
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, best of {args.rounds} rounds")
    for case, (shape, num_slices) in enumerate(CASES):
        print(
            f"\nz {shape}, {num_slices} slices: relative error of the gradient {relative_error(case, args.device):.1e}"
        )
        print(f"{'':32}{'ms':>9}{'speed-up':>10}{'peak MiB':>10}{'share':>8}")
        times = seconds(variants, case, args.device, args.rounds)
        with context.Pool(1, maxtasksperchild=1) as pool:
            memory = {
                name: pool.apply(peak_mib, (name, case, args.device, args.threads)) for name in VARIANTS
            }  # fmt: skip
        for name, value in times.items():
            row = f"{name:32}{1e3 * value:9.1f}{times['published, eager'] / value:10.1f}"
            if name in memory:
                row += f"{memory[name]:10.1f}{memory[name] / memory['published, eager']:8.3f}"
            print(row)


if __name__ == "__main__":
    main()
