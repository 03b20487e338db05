"""Imbalance of the layers against SACReg: two-layer ReLU students of a ReLU teacher (lambda-JEPA, A.2.3, Figure 4,
Table 3).

    python train/experiments/relu_teacher.py                                  two minutes on one core

The paper, after Kunin et al. (2024): students start with imbalance lambda = a^2 - |w|^2 of every neuron at an overall
scale |w| |a| = scale^2. Negative lambda and a positive weight of SACReg both raise the hidden layer's effective rank,
which starts at 0.467 of its width and rises in training; the regularizer also moves the tangent kernel away from its
start at scales where imbalance alone does not. At small scales imbalance alone spans kernel distances of 0.16 to 0.58.

Smaller here: 500 inputs of 1,000; 2,500 steps of 20,000 at four times the rate, half the paper's time; four scales of
17, five imbalances of 17, three weights of seven, at imbalance 0; three seeds of five.

Came out (train/results/experiment_relu_teacher.jsonl): as said at the smallest scale. Rank starts at 0.466. At scale
0.1 it ends at 0.55 and 0.60 for imbalance -1 and -0.25, at 0.46, 0.36 and 0.37 for 0, 0.25 and 1; imbalance alone spans
kernel distances of 0.12 to 0.54, SACReg 0.12 to 0.60 and ranks up to 0.95. At scale 0.3 SACReg still moves the kernel
(0.27) and imbalance hardly (0.02 to 0.10), but the order of ranks is the opposite: 0.53 for imbalance -1, 0.68 from 0
on. At scales 1 and 2 nothing moves, with or without. Spread over
seeds: 0.003 to 0.06 in rank, most at imbalance 0.25 and 1, up to 0.06 in distance.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotadmm_timm.cli import as_dict, option, parse, run
from aotadmm_timm.runs.comparison import as_text
from aotadmm_timm.runs.experiment import keep_experiment
from aotadmm_timm.theory.relu import (
    Networks,
    effective_rank_fraction,
    kernel_distance,
    students,
    tangent_kernel,
    teacher,
    train,
    unit_rows,
)


@dataclass(frozen=True)
class Config:
    scales: tuple[float, ...] = option((0.1, 0.3, 1.0, 2.0), "square roots of |w| |a| of a neuron at the start")
    imbalances: tuple[float, ...] = option((-1.0, -0.25, 0.0, 0.25, 1.0), "a^2 - |w|^2 of a neuron at the start")
    weights: tuple[float, ...] = option((0.002, 0.01, 0.05), "weights of SACReg, at imbalance 0")
    seeds: int = option(3, "draws of teacher, students and inputs")
    dim: int = option(100, "inputs' width")
    pairs: int = option(25, "hidden neurons, counted in pairs of opposite output weight")
    samples: int = option(500, "training inputs; four times as many for the rank")
    steps: int = option(2500, "steps of gradient descent on all of them")
    lr: float = option(0.02, "learning rate at scale 1; divided by the scale squared")
    output: str = option("train/results", "folder of the record and the figure")


Row = dict[str, float]


def grid(cfg: Config) -> list[Row]:
    """Scale, imbalance and weight of every student."""
    plain = [(scale, imbalance, 0.0) for scale in cfg.scales for imbalance in cfg.imbalances]
    held = [(scale, 0.0, weight) for scale in cfg.scales for weight in cfg.weights]
    return [dict(zip(("scale", "imbalance", "weight"), each, strict=True)) for each in plain + held]


def measure(cfg: Config, seed: int) -> list[Row]:
    """One row for each checkpoint and student: rank of the hidden layer, kernel distance and loss."""
    generator = torch.Generator().manual_seed(seed)
    runs = grid(cfg)
    master = teacher(cfg.dim, neurons=3, generator=generator)
    scales = [(run["scale"], run["imbalance"]) for run in runs]
    start = students(cfg.dim, pairs=cfg.pairs, scales=scales, generator=generator)
    x, more = (unit_rows(n, cfg.dim, generator=generator) for n in (cfg.samples, 4 * cfg.samples))
    y, kernel, rows = master(x)[0], tangent_kernel(start, x), []
    path = train(
        Networks(start.w.float(), start.a.float()),
        x.float(),
        y.float(),
        rates=torch.tensor([cfg.lr / run["scale"] ** 2 for run in runs]),
        weights=torch.tensor([run["weight"] for run in runs]),
        steps=cfg.steps,
        checkpoints=checkpoints(cfg.steps),
    )
    for step, (w, a) in path:
        networks = Networks(w.double(), a.double())
        columns = {
            "rank": effective_rank_fraction(networks.hidden(more)).tolist(),
            "kernel_distance": kernel_distance(tangent_kernel(networks, x), kernel).tolist(),
            "loss": (networks(x) - y).square().mean(1).tolist(),
        }
        rows += [{"step": step, **run, **{k: v[i] for k, v in columns.items()}} for i, run in enumerate(runs)]
    return rows


def checkpoints(steps: int) -> list[int]:
    """Start, end and some between, denser at the start."""
    return sorted({round(steps * share) for share in (0, 0.01, 0.05, 0.2, 0.5, 1)})


def over_seeds(draws: Sequence[Sequence[Row]]) -> list[Row]:
    """The mean of every row over the seeds, and the sample standard deviation of rank and distance."""
    rows = []
    for same in zip(*draws, strict=True):
        row = {key: statistics.mean(each[key] for each in same) for key in same[0]}
        for key in ("rank", "kernel_distance"):
            row[f"{key}_sd"] = statistics.stdev([each[key] for each in same]) if len(same) > 1 else 0.0
        rows.append(row)
    return rows


def pick(rows: Sequence[Row], key: str, **where: float) -> list[float]:
    """`key` of the rows that agree with `where`, in their order."""
    return [row[key] for row in rows if all(row[name] == value for name, value in where.items())]


def findings(cfg: Config, rows: Sequence[Row]) -> dict[str, Any]:
    """What the paper's sentences are about: rank at the start, spans of kernel distance, ranks at the end."""
    end = [row for row in rows if row["step"] == cfg.steps]
    found: dict[str, Any] = {"rank at the start": pick(rows, "rank", step=0)[0]}
    for scale in cfg.scales:
        alone, held = {"scale": scale, "weight": 0.0}, {"scale": scale, "imbalance": 0.0}
        distances = [pick(end, "kernel_distance", **where) for where in (alone, held)]
        found[f"scale {scale:g}"] = {
            "ranks by imbalance": dict(zip(map(str, cfg.imbalances), pick(end, "rank", **alone), strict=True)),
            "ranks by weight": dict(zip(("0.0", *map(str, cfg.weights)), pick(end, "rank", **held), strict=True)),
            "kernel distance by imbalance": [min(distances[0]), max(distances[0])],
            "kernel distance by weight": [min(distances[1]), max(distances[1])],
        }
    return found


def draw(cfg: Config, rows: Sequence[Row]) -> Any:
    """Rank over steps at the smallest scale; rank and kernel distance at the end over the scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    path, rank, distance = figure.subplots(1, 3)
    lines = [(f"imbalance {i:g}", {"imbalance": i, "weight": 0.0}, "-") for i in cfg.imbalances]
    lines += [(f"SACReg {w:g}", {"imbalance": 0.0, "weight": w}, "--") for w in cfg.weights]
    steps = [max(step, 1) for step in checkpoints(cfg.steps)]
    for index, (label, where, style) in enumerate(lines):
        look = {"color": f"C{index}", "linestyle": style, "marker": "."}
        path.plot(steps, pick(rows, "rank", scale=min(cfg.scales), **where), label=label, **look)
        rank.plot(cfg.scales, pick(rows, "rank", step=cfg.steps, **where), **look)
        distance.plot(cfg.scales, pick(rows, "kernel_distance", step=cfg.steps, **where), **look)
    path.set(xscale="log", xlabel="step", ylabel="effective rank / width", title=f"Rank, scale {min(cfg.scales):g}")
    rank.set(xscale="log", xlabel="scale of the start", title="Rank at the end")
    distance.set(xscale="log", xlabel="scale of the start", title="Distance of the tangent kernel from its start")
    path.legend(fontsize=7)
    return figure


def main() -> None:
    cfg = parse(Config, description=__doc__)
    began = time.monotonic()
    rows = over_seeds([measure(cfg, seed) for seed in range(cfg.seeds)])
    end = [row for row in rows if row["step"] == cfg.steps]
    print(as_text([list(end[0]), *([f"{value:.3g}" for value in row.values()] for row in end)]))
    kept = keep_experiment(
        "experiment_relu_teacher",
        cfg.output,
        config=as_dict(cfg),
        rows=rows,
        findings=findings(cfg, rows),
        seconds=time.monotonic() - began,
        figure=draw(cfg, rows),
    )
    print(*kept, sep="\n")


if __name__ == "__main__":
    run(main)
