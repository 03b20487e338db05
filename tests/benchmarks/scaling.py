"""How time and memory of a LeJEPA step and of SIGReg grow: with tokens, batch, slices and views.

    python tests/benchmarks/scaling.py [--output scaling.png] [--threads 1] [--device cuda] [--quick]

A step is the forward and backward pass of AoT-ADMM with a projector d-1024-64, global views only, bf16 autocast; SIGReg
is its forward and backward pass on embeddings (views, batch, 64). Each axis changes one number of a common setting.
The table gives the slope between the two largest points of the log-log plot, measured and expected. Expected:

- batch and views: 1, every product and every projection is done once more for each;
- slices: 1 for SIGReg; for a step, what SIGReg's own growth adds to the rest of it;
- tokens N (with the class token): of the formula's multiply-adds in a layer, 2 d^2 N + 2 N^2 d, between those points.

Torch's count is printed beside the formula. Points take turns and the best of their rounds counts. On one CPU thread
time is processor time, which other work hardly disturbs. Memory is the growth of the peak in one call, each point in a
process of its own, where the allocator returns at once what is freed (on a GPU: allocated); below a MiB it is noise and
has no slope.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from memory import high_water_mib

PATCH, EMBEDDING = 8, 64


@dataclass(frozen=True)
class Setting:
    """One point: `what` is "step" or "SIGReg"."""

    model: str
    what: str = "step"
    side: int = 32
    batch: int = 64
    slices: int = 1024
    views: int = 2

    @property
    def tokens(self) -> int:
        """Of an image, with the class token."""
        return (self.side // PATCH) ** 2 + 1


AXES: dict[str, list[dict[str, Any]]] = {
    "tokens": [{"side": side, "batch": 16} for side in (32, 64, 96, 128)],  # 16, 64, 144 and 256 patches
    "batch": [{"batch": batch} for batch in (64, 128, 256, 512)],
    "slices": [{"slices": slices} for slices in (256, 1024, 4096)],
    "views": [{"views": views} for views in (2, 4, 8, 16)],
}
QUICK: dict[str, list[dict[str, Any]]] = {
    "tokens": [{"side": side, "batch": 8} for side in (64, 128)],
    "batch": [{"batch": batch} for batch in (64, 256)],
    "slices": [{"slices": slices} for slices in (1024, 4096)],
    "views": [{"views": views} for views in (2, 8)],
}
Curves = dict[tuple[str, str], list[Setting]]  # by axis and `what`


def settings(model: str, axes: dict[str, list[dict[str, Any]]]) -> Curves:
    """The points of every curve. SIGReg sees embeddings, whatever the number of tokens: it has three."""
    curves: Curves = {}
    for axis, points in axes.items():
        for what in ("step",) if axis == "tokens" else ("step", "SIGReg"):
            curves[axis, what] = [replace(Setting(model, what), **point) for point in points]
    return curves


class Step:
    """Forward and backward of LeJEPA, without an optimizer."""

    def __init__(self, setting: Setting, device: str) -> None:
        import timm  # here: half of the processes do not need it

        import aotadmm_timm  # noqa: F401
        from aotadmm_timm.methods import LeJEPA, Views

        torch.manual_seed(0)
        backbone: Any = timm.create_model(setting.model, num_classes=0, img_size=setting.side)
        self.method = LeJEPA(backbone, projector=(1024, EMBEDDING), num_slices=setting.slices).to(device)
        self.views = Views(torch.randn(setting.views, setting.batch, 3, setting.side, setting.side, device=device))

    def __call__(self) -> None:
        self.method.zero_grad(set_to_none=True)
        with torch.autocast(self.views.global_views.device.type, torch.bfloat16):
            loss = self.method(self.views, 0).loss
        loss.backward()


class Regularizer:
    """Forward and backward of SIGReg."""

    def __init__(self, setting: Setting, device: str) -> None:
        from aotadmm_timm.losses import SIGReg

        torch.manual_seed(0)
        self.regularizer = SIGReg(setting.slices)
        self.z = torch.randn(setting.views, setting.batch, EMBEDDING, device=device, requires_grad=True)

    def __call__(self) -> None:
        self.z.grad = None
        self.regularizer(self.z, 0).backward()


def build(setting: Setting, device: str) -> Callable[[], None]:
    return (Step if setting.what == "step" else Regularizer)(setting, device)


def clock(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.process_time() if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


def seconds(points: list[Setting], device: str, rounds: int) -> dict[Setting, float]:
    calls = {setting: build(setting, device) for setting in points}
    best = dict.fromkeys(points, math.inf)
    for turn in range(rounds + 1):
        for setting, call in calls.items():
            began = clock(device)
            call()
            if turn:  # the first is a warm-up
                best[setting] = min(best[setting], clock(device) - began)
    return best


def peak_mib(setting: Setting, device: str, threads: int) -> float:
    torch.set_num_threads(threads)
    call = build(setting, device)
    build(replace(setting, batch=2, side=32, slices=16), device)()  # libraries allocate what they need
    if device != "cpu":
        call()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - allocated) / 2**20
    before = high_water_mib()
    call()
    return high_water_mib() - before


def layer_gflop(setting: Setting) -> float:
    """Of one image in the layers, forward and backward, by the formula."""
    import timm

    model: Any = timm.create_model(setting.model)
    d, n = int(model.embed_dim), setting.tokens
    # the two projections, and the two products of attention; backward has two products for each of forward
    return 3 * 2 * len(model.blocks) * (2 * d**2 * n + 2 * n**2 * d) / 1e9


def counted_gflop(setting: Setting) -> float:
    """Of one image, forward and backward: all products that torch counts."""
    from timm.layers import set_fused_attn
    from torch.utils.flop_counter import FlopCounterMode

    set_fused_attn(False)  # every product written out
    step = Step(replace(setting, batch=2, views=1), "cpu")
    set_fused_attn(True)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 2e9


def expected(axis: str, what: str, points: list[Setting], times: dict[Setting, float]) -> list[float]:
    """Relative time at the two largest points."""
    ends = points[-2:]
    if axis == "tokens":
        return [layer_gflop(setting) for setting in ends]
    if axis == "slices" and what == "step":
        own = [times[replace(setting, what="SIGReg")] for setting in ends]
        return [times[ends[0]], times[ends[0]] + own[1] - own[0]]
    return [float(getattr(setting, axis)) for setting in ends]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Between the last two points of a log-log plot."""
    return math.log(y[-1] / y[-2]) / math.log(x[-1] / x[-2]) if min(y[-2:]) > 0 else math.nan


def draw(
    curves: Curves,
    times: dict[Setting, float],
    memory: dict[Setting, float],
    lines: dict[tuple[str, str], list[float]],
    title: str,
    path: Path,
) -> None:
    """Time above, memory below, a column for each axis; the expected growth of time as a dashed line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(AXES), figsize=(14, 6.4), sharex="col", layout="constrained")
    for (axis, what), points in curves.items():
        column, colour = list(AXES).index(axis), "C0" if what == "step" else "C1"
        x = [getattr(setting, axis) for setting in points]
        top, bottom = axes[:, column]
        top.plot(x, [1e3 * times[s] for s in points], "o-", color=colour, label=what)
        low, high = lines[axis, what]
        end = 1e3 * times[points[-1]]
        top.plot(x[-2:], [end * low / high, end], "--", color="black", linewidth=1, zorder=3)
        bottom.plot(x, [max(memory[s], 0.1) for s in points], "o-", color=colour, label=what)
        bottom.set_xlabel(axis)
    for each in axes.flat:
        each.set_xscale("log", base=2)
        each.set_yscale("log")
        each.grid(alpha=0.3)
    axes[0, 0].set_ylabel("time [ms]")
    axes[1, 0].set_ylabel("peak memory [MiB]")
    axes[0, 1].legend()
    figure.suptitle(f"{title}; dashed: expected growth")
    aside = path.with_name(path.name + ".part.png")
    figure.savefig(aside, dpi=110)
    plt.close(figure)
    os.replace(aside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="aot_admm_tiny; with --quick aot_admm_nano")
    parser.add_argument("--output", type=Path, default=Path("scaling.png"), help="the figure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="4; with --quick 2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small model, two points an axis: under a minute")
    args = parser.parse_args()
    if not args.output.resolve().parent.is_dir():
        parser.error(f"--output {args.output}: no such folder")
    torch.set_num_threads(args.threads)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)  # for the processes that measure memory
    model = args.model or ("aot_admm_nano" if args.quick else "aot_admm_tiny")
    curves = settings(model, QUICK if args.quick else AXES)
    points = list(dict.fromkeys(setting for curve in curves.values() for setting in curve))

    times = seconds(points, args.device, args.rounds or (2 if args.quick else 4))
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        jobs = {s: pool.apply_async(peak_mib, (s, args.device, args.threads)) for s in points}
        memory = {setting: job.get() for setting, job in jobs.items()}

    title = f"{model}, {args.device}, {args.threads} threads, torch {torch.__version__}"
    print(title)
    for setting in curves["tokens", "step"][-2:]:
        print(
            f"{setting.tokens} tokens, forward and backward of an image: {counted_gflop(setting):.3f} GFLOP counted, "
            f"{layer_gflop(setting):.3f} in the layers by the formula"
        )
    print(f"\n{'axis':8}{'':8}{'points':>18}{'ms':>28}{'slope':>7}{'expected':>10}{'MiB':>28}{'slope':>7}")
    lines: dict[tuple[str, str], list[float]] = {}
    for (axis, what), curve in curves.items():
        x = [float(getattr(s, axis)) for s in curve]
        t, m = [1e3 * times[s] for s in curve], [memory[s] for s in curve]
        lines[axis, what] = expected(axis, what, curve, times)
        print(
            f"{axis:8}{what:8}{' '.join(f'{v:.0f}' for v in x):>18}{' '.join(f'{v:.1f}' for v in t):>28}"
            f"{slope(x, t):7.2f}{slope(x, lines[axis, what]):10.2f}{' '.join(f'{v:.1f}' for v in m):>28}"
            f"{slope(x, [v if v > 1 else 0.0 for v in m]):7.2f}"
        )
    draw(curves, times, memory, lines, title, args.output)
    print(f"\nfigure: {args.output}")


if __name__ == "__main__":
    main()
