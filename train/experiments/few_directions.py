"""Why a Gaussian, 3: SIGReg in 1,024 dimensions with few directions on a failure of two of them (LeJEPA, 4.3, Figures
6, 7).

    python train/experiments/few_directions.py                                three minutes on one core

The paper: 100 Gaussian samples in 1,024 dimensions, the first two coordinates of which form an X (their marginals are
standard normal, their covariance is the identity). Gradient descent on the samples with 10 random directions a step,
drawn anew each time, makes the X Gaussian; a few fresh directions do better than thousands of fixed ones.

Here: the same, in 1,024 and in 32 dimensions, 10, 100 and 1,000 directions, fresh and fixed. Measured: Epps-Pulley
within the plane of the X (64 directions), within planes that were Gaussian from the start, and along fresh directions
of all dimensions; 1.05 is expected of Gaussian samples. And whether the mean over directions tells an X from a Gaussian
at all.

Came out: TO BE FILLED
"""

import math
import statistics as stats
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.cli import as_dict, option, parse, run
from aotadmm_timm.losses import sigreg
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.runs.comparison import as_text
from aotadmm_timm.runs.experiment import keep_experiment

Row = dict[str, Any]
FRESH = 1_000_000  # a step that no training reaches: directions that it has not seen


@dataclass(frozen=True)
class Config:
    dims: tuple[int, ...] = option((32, 1024), "dimensions")
    directions: tuple[int, ...] = option((10, 100, 1000), "directions in a step")
    samples: int = option(100, "rows that are moved")
    steps: int = option(400, "steps of Adam on the rows")
    lr: float = option(0.02, "its learning rate")
    seeds: int = option(3, "descents of each kind, of which the means are kept")
    draws: int = option(100, "samples of each kind for the power of the test")
    output: str = option("train/results", "folder of the record and the figure")


def x_shaped(samples: int, dim: int, generator: torch.Generator) -> Tensor:
    """Standard normal rows (N, D) whose second coordinate is the first, or its negative, with equal chances."""
    z = torch.randn(samples, dim, generator=generator)
    z[:, 1] = z[:, 0] * (2 * torch.randint(0, 2, (samples,), generator=generator) - 1)
    return z


def in_plane(z: Tensor, first: int) -> float:
    """SIGReg within the plane of two coordinates, over 64 directions of it."""
    angles = torch.arange(64) * math.pi / 64
    return sigreg(z[:, first : first + 2], torch.stack([angles.cos(), angles.sin()])).item()


def descend(cfg: Config, dim: int, num: int, fresh: bool, seed: int) -> list[Row]:
    """Rows along a descent on SIGReg, the directions new at each step or those of the first."""
    z = x_shaped(cfg.samples, dim, torch.Generator().manual_seed(seed)).requires_grad_()
    optimizer = torch.optim.Adam([z], lr=cfg.lr)
    rows = []
    for step in range(cfg.steps + 1):
        if step % max(1, cfg.steps // 8) == 0:
            seen = z.detach()
            others = [in_plane(seen, first) for first in range(2, min(dim, 18), 2)]
            row = {"dim": dim, "directions": num, "fresh": fresh, "step": step, "x_plane": in_plane(seen, 0)}
            row |= {
                "other_planes": stats.mean(others),
                "all": sigreg(seen, unit_directions(dim, 1000, seed, FRESH)).item(),
            }
            rows.append(row)
        optimizer.zero_grad()
        sigreg(z, unit_directions(dim, num, seed, step if fresh else 0)).backward()
        optimizer.step()
    return rows


def mean_descent(cfg: Config, dim: int, num: int, fresh: bool) -> list[Row]:
    """The mean of the rows over the seeds."""
    paths = [descend(cfg, dim, num, fresh, seed) for seed in range(cfg.seeds)]
    keys = ("x_plane", "other_planes", "all")
    return [rows[0] | {key: stats.mean(row[key] for row in rows) for key in keys} for rows in zip(*paths, strict=True)]


def power(cfg: Config, dim: int, num: int) -> Row:
    """Standard deviations between the mean statistic of X-shaped and of Gaussian samples."""
    values: dict[bool, list[float]] = {True: [], False: []}
    generator = torch.Generator().manual_seed(0)
    for index in range(cfg.draws):
        directions = unit_directions(dim, num, 0, FRESH + index)
        values[True].append(sigreg(x_shaped(cfg.samples, dim, generator), directions).item())
        values[False].append(sigreg(torch.randn(cfg.samples, dim, generator=generator), directions).item())
    spread = math.sqrt((stats.variance(values[True]) + stats.variance(values[False])) / 2)
    return {"dim": dim, "directions": num, "power": (stats.mean(values[True]) - stats.mean(values[False])) / spread}


def draw(cfg: Config, rows: list[Row]) -> Any:
    """The planes along the descents, a panel for each number of dimensions, and the statistic along fresh
    directions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * (len(cfg.dims) + 1), 3.8), layout="constrained")
    *planes, last = figure.subplots(1, len(cfg.dims) + 1)
    for axis, dim in zip(planes, cfg.dims, strict=True):
        for index, num in enumerate(cfg.directions):
            for fresh, style in ((True, "-"), (False, "--")):
                path = [r for r in rows if (r["dim"], r["directions"], r["fresh"]) == (dim, num, fresh)]
                steps, look = [r["step"] for r in path], {"color": f"C{index}", "linestyle": style}
                label = f"{num}, {'fresh' if fresh else 'fixed'}"
                axis.plot(steps, [r["x_plane"] for r in path], label=label, **look)
                if dim == max(cfg.dims):
                    last.plot(steps, [r["all"] for r in path], **look)
        axis.axhline(1.05, color="k", linestyle=":", linewidth=1)
        axis.set(xlabel="step", title=f"Epps-Pulley in the plane of the X, D = {dim}", ylim=(0, None))
    planes[0].legend(fontsize=7)
    last.axhline(1.05, color="k", linestyle=":", linewidth=1)
    last.set(xlabel="step", title=f"along 1,000 fresh directions, D = {max(cfg.dims)}", ylim=(0, None))
    return figure


def main() -> None:
    cfg = parse(Config, description=__doc__)
    began = time.monotonic()
    cases = [(dim, num) for dim in cfg.dims for num in cfg.directions]
    rows = [row for case in cases for fresh in (True, False) for row in mean_descent(cfg, *case, fresh)]
    powers = [power(cfg, *case) for case in [(2, min(cfg.directions)), *cases]]
    for table in ([row for row in rows if row["step"] in (0, cfg.steps)], powers):
        cells = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in table]
        print(as_text([list(table[0]), *cells]))
    kept = keep_experiment(
        "experiment_few_directions",
        cfg.output,
        config=as_dict(cfg),
        rows=rows,
        findings={"power": {f"{p['dim']} dimensions, {p['directions']} directions": p["power"] for p in powers}},
        seconds=time.monotonic() - began,
        figure=draw(cfg, rows),
    )
    print(*kept, sep="\n")


if __name__ == "__main__":
    run(main)
