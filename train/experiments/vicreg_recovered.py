"""VICReg from SIGReg's slicer: a test of mean and standard deviation on every projection (LeJEPA, section 5.2 and
B.14).

    python train/experiments/vicreg_recovered.py                              half a minute on one core

The paper: with T = mean^2 + (std - 1)^2 as the univariate test, SIGReg enforces mean 0 and covariance I in the limit of
many slices and so recovers VICReg; it advises against it, because two moments leave shortcuts.

Here: correlated Gaussian batches of 64 dimensions near and far from covariance I. Measured: how the gradient along K
slices compares with that of the closed limit and with VICReg's hinge and covariance terms at their best weights; where
descent leads; and what it does to an X in the plane (few_directions.py), next to Epps-Pulley.

Came out (train/results/experiment_vicreg_recovered.jsonl): recovered, in a limit that is far. Near covariance I the
gradient along 256 slices has a cosine of 0.80 with that of the limit, along 4,096 of 0.99, in 64 dimensions; the
limit's is VICReg's two terms and the mean's (0.98). At a distance of 1 VICReg's hinge sees only half of the variances:
0.80. Descent on moments ends at mean 0 and covariance I (0.004, Epps-Pulley at 0.08, that also shapes the rest), VICReg
at 0.10 with the mean where it was. The shortcut is real: moments leave the X as it is (Epps-Pulley 10.4 from 10.1),
Epps-Pulley resolves it (0.01).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.cli import as_dict, option, parse, run
from aotadmm_timm.losses import sigreg
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.losses.multivariate import covariance_penalty, variance_hinge
from aotadmm_timm.losses.slicing import sliced
from aotadmm_timm.runs.comparison import as_text
from aotadmm_timm.runs.experiment import keep_experiment
from aotadmm_timm.theory.moment_slices import mean_and_spread, moments_limit

Row = dict[str, Any]
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    slices: tuple[int, ...] = option((4, 16, 64, 256, 1024, 4096), "directions of one gradient")
    distances: tuple[float, ...] = option((0.1, 0.5, 1.0), "|Sigma - I|_F / sqrt(d) of the batches")
    dim: int = option(64, "embedding's width")
    samples: int = option(512, "rows of a batch")
    steps: int = option(300, "steps of a descent")
    lr: float = option(0.02, "Adam's learning rate in it")
    descent_slices: int = option(256, "directions in a step of a descent")
    seed: int = option(0, "of all draws")
    output: str = option("train/results", "folder of the record and the figure")


def batch(cfg: Config, distance: float) -> Tensor:
    """Rows (N, d) whose covariance is at that distance from the identity, with a mean of a tenth of it."""
    generator = torch.Generator().manual_seed(cfg.seed)
    basis = torch.linalg.qr(torch.randn(cfg.dim, cfg.dim, generator=generator, dtype=torch.float64)).Q
    logs = torch.randn(cfg.dim, generator=generator, dtype=torch.float64)
    low, high = 0.0, 10.0
    for _ in range(60):  # the spread of log variances that gives the distance
        middle = (low + high) / 2
        low, high = (middle, high) if _distance(logs * middle) < distance else (low, middle)
    z = torch.randn(cfg.samples, cfg.dim, generator=generator, dtype=torch.float64)
    z = z - z.mean(0)
    white = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / len(z))).T
    return (white * torch.exp(low * logs / 2)) @ basis.T + 0.1 * distance


def _distance(logs: Tensor) -> float:
    return float((logs.exp() - 1).square().mean().sqrt())


def gradient(loss: Loss, z: Tensor) -> Tensor:
    """Flat."""
    z = z.clone().requires_grad_()
    return torch.autograd.grad(loss(z), z)[0].flatten()


def limit(z: Tensor) -> Tensor:
    """`moments_limit` of a batch."""
    centered = z - z.mean(0)
    return moments_limit(z.mean(0), centered.T @ centered / len(z))


def share_explained(target: Tensor, parts: list[Tensor]) -> float:
    """Cosine of the target and its projection on the span of the parts."""
    span = torch.linalg.qr(torch.stack(parts, 1)).Q
    return float((span.T @ target).norm() / target.norm())


def alignment(cfg: Config, distance: float) -> list[Row]:
    """Cosines of the sliced gradient, by the number of slices, and of the limit's with VICReg's."""
    z = batch(cfg, distance)
    closed = gradient(limit, z)
    mean = gradient(lambda z: z.mean(0).square().sum(), z)
    vicreg = [mean, gradient(variance_hinge, z), gradient(covariance_penalty, z)]
    rows = []
    for num in cfg.slices:
        directions = unit_directions(cfg.dim, num, cfg.seed, num).double()
        found = gradient(lambda z, directions=directions: sliced(z, directions, mean_and_spread), z)  # type: ignore[misc]
        rows.append(
            {
                "part": "alignment",
                "distance": distance,
                "slices": num,
                "with_limit": float(found @ closed / (found.norm() * closed.norm())),
                "with_vicreg": share_explained(found, vicreg),
            }
        )
    return rows


def descents(cfg: Config) -> list[Row]:
    """Distance from mean 0 and covariance I along a descent on each loss, from the farthest batch."""
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "moments along slices": lambda z, a: sliced(z, a, mean_and_spread),
        "VICReg's two terms": lambda z, a: variance_hinge(z) + covariance_penalty(z),
        "Epps-Pulley along slices": sigreg,
    }
    rows = []
    for name, loss in losses.items():
        z = batch(cfg, max(cfg.distances)).requires_grad_()
        optimizer = torch.optim.Adam([z], lr=cfg.lr)
        for step in range(cfg.steps + 1):
            if step % max(1, cfg.steps // 10) == 0:
                centered = (z - z.mean(0)).detach()
                off = centered.T @ centered / len(z) - torch.eye(cfg.dim, dtype=z.dtype)
                row = {"part": "descent", "loss": name, "step": step, "mean": z.detach().mean(0).norm().item()}
                rows.append(row | {"covariance": (off.norm() / cfg.dim**0.5).item()})
            optimizer.zero_grad()
            loss(z, unit_directions(cfg.dim, cfg.descent_slices, cfg.seed, step).double()).backward()
            optimizer.step()
    return rows


def shortcut(cfg: Config) -> list[Row]:
    """Epps-Pulley of an X in two dimensions after a descent on moments, and after one on itself."""
    rows = []
    plane = unit_directions(2, 64, cfg.seed, 0).double()
    for name in ("start", "moments along slices", "Epps-Pulley along slices"):
        generator = torch.Generator().manual_seed(cfg.seed)
        z = torch.randn(cfg.samples, 2, generator=generator, dtype=torch.float64)
        z[:, 1] = z[:, 0] * (2 * torch.randint(0, 2, (cfg.samples,), generator=generator) - 1)
        z.requires_grad_()
        optimizer = torch.optim.Adam([z], lr=cfg.lr)
        for step in range(0 if name == "start" else cfg.steps):
            directions = unit_directions(2, 16, cfg.seed, step).double()
            optimizer.zero_grad()
            value = sigreg(z, directions) if "Epps" in name else sliced(z, directions, mean_and_spread)
            value.backward()
            optimizer.step()
        moments = sliced(z, plane, mean_and_spread).item()
        rows.append({"part": "X", "after": name, "epps_pulley": sigreg(z, plane).item(), "moments": moments})
    return rows


def draw(cfg: Config, rows: list[Row]) -> Any:
    """Alignment over slices, descents, and what they do to the X."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    cosine, path, bars = figure.subplots(1, 3)
    for index, distance in enumerate(cfg.distances):
        some = [row for row in rows if row["part"] == "alignment" and row["distance"] == distance]
        for key, style in (("with_limit", "-"), ("with_vicreg", "--")):
            label = f"{'limit' if style == '-' else 'VICReg'}, distance {distance:g}"
            values = [row[key] for row in some]
            cosine.semilogx(cfg.slices, values, style, color=f"C{index}", marker=".", label=label)
    for name in dict.fromkeys(row["loss"] for row in rows if row["part"] == "descent"):
        some = [row for row in rows if row["part"] == "descent" and row["loss"] == name]
        path.plot([row["step"] for row in some], [row["covariance"] for row in some], marker=".", label=name)
    some = [row for row in rows if row["part"] == "X"]
    bars.barh([row["after"] for row in some], [row["epps_pulley"] for row in some])
    bars.axvline(1.05, color="k", linestyle=":", linewidth=1)
    bars.invert_yaxis()
    cosine.set(xlabel="slices", title="Cosine of the sliced gradient with ...", ylim=(None, 1.02))
    path.set(xlabel="step", title="|Sigma - I|_F / sqrt(d)", ylim=(0, None))
    bars.set(title="Epps-Pulley of the X")
    cosine.legend(fontsize=7)
    path.legend(fontsize=7)
    return figure


def main() -> None:
    cfg = parse(Config, description=__doc__)
    began = time.monotonic()
    rows = [row for distance in cfg.distances for row in alignment(cfg, distance)] + descents(cfg) + shortcut(cfg)
    found = {}
    for part in ("alignment", "descent", "X"):
        some = [row for row in rows if row["part"] == part and row.get("step", cfg.steps) == cfg.steps]
        cells = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in some]
        print(as_text([list(some[0]), *cells]))
    for row in (row for row in rows if row["part"] == "X"):
        found[f"Epps-Pulley of the X after {row['after']}"] = row["epps_pulley"]
    kept = keep_experiment(
        "experiment_vicreg_recovered",
        cfg.output,
        config=as_dict(cfg),
        rows=rows,
        findings=found,
        seconds=time.monotonic() - began,
        figure=draw(cfg, rows),
    )
    print(*kept, sep="\n")


if __name__ == "__main__":
    run(main)
