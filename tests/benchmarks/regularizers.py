"""What each regularizer costs, whether it leaves collapse, and what it sees, beside SIGReg in the same run.

    python tests/benchmarks/regularizers.py [cost] [collapse] [power] [directions] [--names sigreg mmd ...]

cost        Forward and backward with 256 slices: CPU time over SIGReg's (best of some rounds), growth of the process's
            peak memory (each in a process of its own), norm of the gradient over SIGReg's at one correlated batch: a
            weight times its inverse pulls as hard there.
collapse    500 steps of Adam on a free 256 x 64 batch, from equal rows, nearly equal rows, and rows on a line: "yes" if
            it ends with more than half of its rank and a standard deviation between 0.3 and 3.
power       Share of 100 non-Gaussian batches of 256 x D, each of mean 0 and variance 1 in every coordinate, whose value
            is above the 95 % quantile of 300 Gaussian ones. Not of rdmreg, whose target is another distribution.
directions  Variance over the steps of SIGReg's value, and of its gradient, by how directions are drawn.

What is blind to scale, or needs it fixed, is judged on embeddings normalized as by --normalize. One thread.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial

import torch
from memory import high_water_mib
from torch import Tensor

from aotadmm_timm.losses import DIRECTIONS, REGULARIZERS, Regularizer, SIGReg, build_regularizer
from aotadmm_timm.losses.directions import draw_directions
from aotadmm_timm.theory.objective import normalize_energy

SIZES = [(256, 64), (2048, 512)]


def build(name: str, num_slices: int) -> Regularizer:
    """As it is used: on normalized embeddings if it asks for them."""
    entry = REGULARIZERS[name]
    regularizer = build_regularizer(name, num_slices=num_slices, normalize=True)
    if not (entry.scale_blind or entry.needs_normalize):
        return regularizer
    return lambda z, step: regularizer(normalize_energy(z), step)


def correlated(n: int, d: int, rho: float = 0.3) -> Tensor:
    """Each coordinate follows the one before it: correlation rho^|i - j|."""
    noise, columns = torch.randn(n, d), []
    for j in range(d):
        columns.append(rho * columns[-1] + (1 - rho**2) ** 0.5 * noise[:, j] if columns else noise[:, j])
    return torch.stack(columns, 1)


def low_rank(n: int, d: int) -> Tensor:
    """Three quarters of the dimensions, in a random rotation."""
    rank = 3 * d // 4
    return torch.randn(n, rank) @ torch.linalg.qr(torch.randn(d, rank))[0].T * (d / rank) ** 0.5


def mixture(n: int, d: int) -> Tensor:
    """Ten clusters; half of the variance is between them."""
    return 0.5**0.5 * (torch.randn(10, d)[torch.randint(10, (n,))] + torch.randn(n, d))


def laplace(n: int, d: int) -> Tensor:
    return torch.distributions.Laplace(torch.zeros(n, d), 0.5**0.5).sample()


def uniform(n: int, d: int) -> Tensor:
    return 3**0.5 * (2 * torch.rand(n, d) - 1)


ALTERNATIVES: dict[str, Callable[[int, int], Tensor]] = {
    "Laplace": laplace,
    "uniform": uniform,
    "mixture": mixture,
    "correlated": correlated,
    "low rank": low_rank,
}


def call(regularizer: Regularizer, z: Tensor) -> Tensor:
    z.grad = None
    regularizer(z, 0).backward()
    assert z.grad is not None
    return z.grad


def batch(size: tuple[int, int]) -> Tensor:
    torch.manual_seed(0)
    return correlated(*size).requires_grad_()


def seconds(names: list[str], size: tuple[int, int], rounds: int) -> dict[str, float]:
    """Variants take turns, as other work on the machine only adds time. What takes over a second has one turn."""
    z, best = batch(size), dict.fromkeys(names, float("inf"))
    regularizers = {name: build(name, 256) for name in names}
    for turn in range(rounds + 1):
        for name, regularizer in regularizers.items():
            if turn > 1 and best[name] > 1:
                continue
            began = time.process_time()
            call(regularizer, z)
            if turn:  # the first is a warm-up
                best[name] = min(best[name], time.process_time() - began)
    return best


def peak_mib(name: str, size: tuple[int, int]) -> float:
    torch.set_num_threads(1)
    z, regularizer = batch(size), build(name, 256)
    call(regularizer, torch.randn(8, 4, requires_grad=True))  # libraries allocate what they need
    before = high_water_mib()
    call(regularizer, z)
    return high_water_mib() - before


def cost(names: list[str]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["regularizers"])
    print("| regularizer |" + "".join(f" time, {n} x {d} | MiB | gradient |" for n, d in SIZES))
    print("|---|" + "---|---|---|" * len(SIZES))
    columns = dict.fromkeys(names, "")
    for size in SIZES:
        times = seconds(names, size, rounds=5)
        norms = {name: float(call(build(name, 256), batch(size)).norm()) for name in names}
        for name in names:
            with context.Pool(1, maxtasksperchild=1) as pool:
                memory = pool.apply(peak_mib, (name, size))
            share = f"{times[name] / times['sigreg']:.2f}" if name != "sigreg" else f"{1e3 * times[name]:.1f} ms"
            columns[name] += f" {share} | {memory:.0f} | {norms[name] / norms['sigreg']:.2g} |"
    for name, text in columns.items():
        print(f"| {name} |{text}")


def effective_rank(z: Tensor) -> float:
    share = torch.linalg.svdvals((z - z.mean(0)).double())
    share = share / share.sum().clamp_min(1e-300)
    return float(torch.exp(-(share * share.clamp_min(1e-300).log()).sum()))


def leaves(name: str, start: Tensor) -> str:
    z, regularizer = start.clone().requires_grad_(), build(name, 64)
    optimizer = torch.optim.Adam([z], lr=0.02, betas=(0.9, 0.95))
    for step in range(500):
        optimizer.zero_grad()
        regularizer(z, step).backward()
        optimizer.step()
    entry, end = REGULARIZERS[name], z.detach()
    if entry.scale_blind or entry.needs_normalize:
        end = normalize_energy(end)
    if name == "rdmreg":
        end = end.relu()
    rank, scale = effective_rank(end), float(end.std(0).median())
    left = rank > end.shape[1] / 2 and 0.3 < scale < 3
    return f"{'yes' if left else 'no'} ({rank:.0f}, {scale:.2g})"


def collapse(names: list[str]) -> None:
    torch.manual_seed(0)
    point = torch.randn(64).expand(256, 64).contiguous()
    starts = {
        "equal rows": point,
        "nearly equal (1e-3)": point + 1e-3 * torch.randn(256, 64),
        "on a line": torch.randn(256, 1) * torch.randn(64),
    }
    print("\n| regularizer | blind to scale | " + " | ".join(starts) + " |\n|---|---|" + "---|" * len(starts))
    for name in names:
        blind = "yes" if REGULARIZERS[name].scale_blind else "no"
        print(
            f"| {name} | {blind} | " + " | ".join(leaves(name, start) for start in starts.values()) + " |", flush=True
        )


@torch.no_grad()
def power(names: list[str]) -> None:
    print("\n| regularizer |" + "".join(f" {other}, D = {d} |" for d in (8, 64) for other in ALTERNATIVES))
    print("|---|" + "---|" * 2 * len(ALTERNATIVES))
    for name in names:
        if name == "rdmreg":
            continue
        row = ""
        for d in (8, 64):
            torch.manual_seed(0)
            regularizer = build(name, 64)
            null = torch.stack([regularizer(torch.randn(256, d), step) for step in range(300)])
            limit = null.quantile(0.95)
            for draw in ALTERNATIVES.values():
                values = torch.stack([regularizer(draw(256, d), 1000 + step) for step in range(100)])
                row += f" {int((values > limit).sum())} |"
        print(f"| {name} |{row}", flush=True)


def spread(kind: str, z: Tensor) -> list[float]:
    """Variance over 200 steps of SIGReg with 256 slices, and of its gradient, summed over its entries."""
    regularizer, values, gradients = SIGReg(256, directions=kind), [], []
    for step in range(200):
        leaf = z.clone().requires_grad_()
        value = regularizer(leaf, step)
        gradients.append(torch.autograd.grad(value, leaf)[0])
        values.append(value.detach())
    return [float(torch.stack(values).var()), float(torch.stack(gradients).var(0).sum())]


def drawing_ms(kind: str, d: int) -> float:
    draw_directions(kind, d, 256, 0, 0)
    began = time.process_time()
    for step in range(20):
        draw_directions(kind, d, 256, 0, step)
    return 1e3 * (time.process_time() - began) / 20


def directions() -> None:
    print("\n| D | batch | directions | variance of the value | of the gradient | ms to draw |")
    print("|---|---|---|---|---|---|")
    for d in (64, 512):
        for name, draw in {"correlated": partial(correlated, rho=0.5), "low rank": low_rank}.items():
            torch.manual_seed(0)
            z, reference = draw(256, d), []
            for kind in DIRECTIONS:
                found = spread(kind, z)
                reference = reference or found
                ratios = " | ".join(f"{a / b:.2f}" for a, b in zip(found, reference, strict=True))
                print(f"| {d} | {name} | {kind} | {ratios} | {drawing_ms(kind, d):.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"cost": cost, "collapse": collapse, "power": power}
    parser.add_argument("parts", nargs="*", metavar="PART", help="cost, collapse, power, directions; all by default")
    parser.add_argument("--names", nargs="+", default=list(REGULARIZERS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")
    for name, part in parts.items():
        if not args.parts or name in args.parts:
            part(["sigreg", *(other for other in args.names if other != "sigreg")])
    if not args.parts or "directions" in args.parts:
        directions()


if __name__ == "__main__":
    main()
