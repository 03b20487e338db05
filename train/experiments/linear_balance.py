"""Gradient flow of a linear encoder-decoder against its closed form, for several imbalances (lambda-JEPA, 3.1 and A.1).

    python train/experiments/linear_balance.py                                seconds

The papers: W2^T W2 - W1 W1^T = lambda I is conserved without regularizer; the flow from such a start has a closed form
(Domine et al. 2025). A negative lambda keeps the encoder of full rank, whatever the rank of the task; zero or positive
lambda from a small start lets it collapse to the rank of the task. Weight decay with a log-determinant on the encoder
(SACReg) drives any start to lambda = -gamma / lambda_reg, exponentially.

Here: width 8, a task of rank 4, white inputs; the flow by Runge-Kutta, the closed form beside it.

Came out (train/results/experiment_linear_balance.jsonl): as said. Flow and closed form differ by 1e-9, as much as the
conserved quantity drifts in integration; under SACReg the imbalance follows its exponential to 2e-7. At lambda = -2 and
-0.5 the encoder ends with effective rank 8.0 and 7.5 and no eigenvalue of W1 W1^T under 2 and 0.5; at 0, 0.5 and 2 with
3.6, 3.3 and 3.0 on a task of rank 4, and eigenvalues of zero, but at 0 only to the 5e-4 it started with. The sign costs
nothing: at +-lambda the loss falls alike, and the larger |lambda| the faster; lambda = 0 learns one mode after the
other and has not learned the fourth by the end.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.cli import as_dict, option, parse, run
from aotadmm_timm.runs.comparison import as_text
from aotadmm_timm.runs.experiment import keep_experiment
from aotadmm_timm.theory.balance import balanced_factors, gradient_flow, gram_matrix, imbalance, predicted_imbalance
from aotadmm_timm.theory.balanced_flow import balanced_gram, encoder_of, map_of
from aotadmm_timm.theory.spectrum import effective_rank

Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    imbalances: tuple[float, ...] = option((-2.0, -0.5, 0.0, 0.5, 2.0), "lambda of the start, one flow each")
    width: int = option(8, "inputs, hidden neurons and outputs")
    rank: int = option(4, "singular values of the task that are not zero, from 1 down")
    start: float = option(1e-3, "standard deviation of the entries of the map W2 W1 at the start")
    time: float = option(20.0, "length of the flow")
    steps: int = option(2000, "steps of Runge-Kutta")
    weight_decay: float = option(0.1, "lambda_reg of the regularized flow")
    gamma: float = option(0.2, "weight of its log-determinant: it ends at -gamma / lambda_reg")
    seed: int = option(0, "of task and starts")
    output: str = option("train/results", "folder of the record and the figure")


def task(cfg: Config, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """White inputs X with X X^T / P = I, and a map of the rank asked for with random singular vectors."""
    size = (cfg.width, cfg.width)
    left, right = (torch.linalg.qr(torch.randn(size, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    values = torch.zeros(cfg.width, dtype=torch.float64)
    values[: cfg.rank] = torch.linspace(1, 1 / cfg.rank, cfg.rank, dtype=torch.float64)
    return math.sqrt(cfg.width) * torch.eye(cfg.width, dtype=torch.float64), (left * values) @ right.T


def balanced_rows(cfg: Config, lam: float, start: Tensor, x: Tensor, target: Tensor) -> list[Row]:
    """Along one flow without regularizer: what is integrated, and how far the closed form is from it."""
    path = gradient_flow(*balanced_factors(start, lam), x, target @ x, time=cfg.time, steps=cfg.steps)
    path = path[:: max(1, cfg.steps // 40)]
    times = torch.tensor([t for t, _, _ in path], dtype=torch.float64)
    closed = balanced_gram(path[0][1], path[0][2], target, times)
    rows = []
    for (t, w1, w2), gram in zip(path, closed, strict=True):
        encoder = torch.linalg.eigvalsh(w1 @ w1.T).flip(0)
        drift = imbalance(w1, w2) - lam * torch.eye(len(w1), dtype=torch.float64)
        exact = torch.linalg.svdvals(map_of(gram, cfg.width))
        rows.append(
            {
                "flow": "balanced",
                "imbalance": lam,
                "time": t,
                "loss": 0.5 * (w2 @ w1 - target).square().sum().item(),
                "closed_loss": 0.5 * (map_of(gram, cfg.width) - target).square().sum().item(),
                "singular_values": torch.linalg.svdvals(w2 @ w1).tolist(),
                "closed_singular_values": exact.tolist(),
                "encoder_rank": effective_rank(encoder).item(),
                "closed_encoder_rank": effective_rank(torch.linalg.eigvalsh(encoder_of(gram, cfg.width))).item(),
                "encoder_smallest": encoder[-1].item(),
                "conserved": drift.abs().max().item(),
                "closed_gap": (gram - gram_matrix(w1, w2)).abs().max().item(),
            }
        )
    return rows


def regularized_rows(cfg: Config, x: Tensor, target: Tensor, generator: torch.Generator) -> list[Row]:
    """Along the flow with SACReg from a Gaussian start: eigenvalues of the imbalance, and their closed form."""
    size = (cfg.width, cfg.width)
    w1, w2 = (0.5 * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    held = {"lambda_reg": cfg.weight_decay, "gamma": cfg.gamma}
    path = gradient_flow(w1, w2, x, target @ x, time=cfg.time, steps=cfg.steps, **held)
    begin, rows = imbalance(w1, w2), []
    for t, a, b in path[:: max(1, cfg.steps // 40)]:
        predicted = predicted_imbalance(begin, t, **held)
        rows.append(
            {
                "flow": "regularized",
                "time": t,
                "eigenvalues": torch.linalg.eigvalsh(imbalance(a, b)).tolist(),
                "closed_eigenvalues": torch.linalg.eigvalsh(predicted).tolist(),
                "encoder_rank": effective_rank(torch.linalg.eigvalsh(a @ a.T)).item(),
                "closed_gap": (imbalance(a, b) - predicted).abs().max().item(),
            }
        )
    return rows


def draw(cfg: Config, rows: list[Row]) -> Any:
    """Integrated: dots; closed form: lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6), layout="constrained")
    loss, modes, rank, delta = figure.subplots(1, 4)
    for index, lam in enumerate(cfg.imbalances):
        flow = [row for row in rows if row["flow"] == "balanced" and row["imbalance"] == lam]
        times = [row["time"] for row in flow]
        for axis, key in ((loss, "loss"), (rank, "encoder_rank")):
            axis.plot(times, [row[key] for row in flow], ".", color=f"C{index}", markersize=4)
            axis.plot(times, [row[f"closed_{key}"] for row in flow], color=f"C{index}", label=f"lambda {lam:g}")
        if lam in (min(cfg.imbalances), 0):
            style = "--" if lam else "-"
            modes.plot(times, [row["singular_values"] for row in flow], ".", color=f"C{index}", markersize=3)
            modes.plot(times, [row["closed_singular_values"] for row in flow], style, color=f"C{index}")
    flow = [row for row in rows if row["flow"] == "regularized"]
    times = [row["time"] for row in flow]
    delta.plot(times, [row["eigenvalues"] for row in flow], ".", color="C0", markersize=3)
    delta.plot(times, [row["closed_eigenvalues"] for row in flow], color="C0")
    delta.axhline(-cfg.gamma / cfg.weight_decay, color="k", linestyle=":", linewidth=1)
    loss.set(xlabel="time", title="Loss", yscale="log", ylim=(1e-6, None))
    modes.set(xlabel="time", title=f"Singular values, lambda 0 and {min(cfg.imbalances):g} (--)")
    rank.set(xlabel="time", title="Effective rank of the encoder")
    delta.set(xlabel="time", title="Imbalance under SACReg")
    loss.legend(fontsize=7)
    return figure


def findings(cfg: Config, rows: list[Row]) -> dict[str, Any]:
    """Largest gaps to the closed forms, drift of the conserved quantity, and the encoder's ranks at the end."""
    balanced = [row for row in rows if row["flow"] == "balanced"]
    held = [row for row in rows if row["flow"] == "regularized"]
    last = {row["imbalance"]: row for row in balanced}
    return {
        "closed form off by": max(row["closed_gap"] for row in balanced),
        "imbalance drifts by": max(row["conserved"] for row in balanced),
        "regularized imbalance off by": max(row["closed_gap"] for row in held),
        "encoder rank at the end": {str(lam): last[lam]["encoder_rank"] for lam in cfg.imbalances},
        "smallest eigenvalue of W1 W1^T at the end": {
            str(lam): last[lam]["encoder_smallest"] for lam in cfg.imbalances
        },
        "loss at the end": {str(lam): last[lam]["loss"] for lam in cfg.imbalances},
        "encoder rank at the end, regularized": held[-1]["encoder_rank"],
    }


def main() -> None:
    cfg = parse(Config, description=__doc__)
    began = time.monotonic()
    generator = torch.Generator().manual_seed(cfg.seed)
    x, target = task(cfg, generator)
    start = cfg.start * torch.randn(cfg.width, cfg.width, generator=generator, dtype=torch.float64)
    rows = [row for lam in cfg.imbalances for row in balanced_rows(cfg, lam, start, x, target)]
    rows += regularized_rows(cfg, x, target, generator)
    found = findings(cfg, rows)
    print(as_text([[key, str(value)] for key, value in found.items()]))
    kept = keep_experiment(
        "experiment_linear_balance",
        cfg.output,
        config=as_dict(cfg),
        rows=[{key: v for key, v in row.items() if not key.startswith("closed_")} for row in rows[::2]],
        findings=found,
        seconds=time.monotonic() - began,
        figure=draw(cfg, rows),
    )
    print(*kept, sep="\n")


if __name__ == "__main__":
    run(main)
