"""Why a Gaussian, 2: what one sample feels, by statistic: Epps-Pulley against moments and distribution functions.

    python train/experiments/bounded_gradients.py                             seconds

LeJEPA, section 4.2: the Epps-Pulley statistic has bounded gradient and curvature whatever the sample, moments do not
(their gradient grows like |x|^(k-1)), and tests of the distribution function sort.

Here: 100 samples of N(0, 1), one of which is moved from -30 to 30; gradient and curvature of the statistic in it. All
have the factor n, so that they are the pull on a sample, not on the mean.

Came out: TO BE FILLED
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.cli import as_dict, option, parse, run
from aotadmm_timm.losses import sigreg
from aotadmm_timm.losses.univariate import (
    anderson_darling,
    cramer_von_mises,
    epps_pulley,
    extended_jarque_bera,
    moments,
)
from aotadmm_timm.runs.comparison import as_text
from aotadmm_timm.runs.experiment import keep_experiment

Statistic = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    samples: int = option(100, "of N(0, 1), one of which is moved")
    reach: float = option(30.0, "how far it is moved")
    points: int = option(1201, "places where it is looked at")
    seed: int = option(0, "of the sample")
    output: str = option("train/results", "folder of the record and the figure")


def quadrature(x: Tensor) -> Tensor:
    """SIGReg of the samples x (P, n), summed over P, its weight scaled to that of `epps_pulley`."""
    return len(x) / math.sqrt(2 * math.pi) * sigreg(x[..., None], x.new_ones(1, 1))


def statistics(samples: int) -> dict[str, Statistic]:
    """By name; moments, which have no factor n, times n."""
    return {
        "Epps-Pulley": epps_pulley,
        "its quadrature": quadrature,
        "Cramer-von Mises": cramer_von_mises,
        "Anderson-Darling": anderson_darling,
        "moments to 4": lambda x: samples * moments(x, order=4),
        "moments to 6": lambda x: samples * moments(x, order=6),
        "extended Jarque-Bera": extended_jarque_bera,
    }


def profile(statistic: Statistic, others: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient in the moved sample at each place, and its derivative by central differences at the places between."""
    moved = places.clone().requires_grad_()
    rows = torch.cat([moved[:, None], others.expand(len(places), -1)], 1)
    (gradient,) = torch.autograd.grad(statistic(rows).sum(), moved)
    return gradient, gradient.diff() / places.diff()


def measure(cfg: Config) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Places, and gradient and curvature there by statistic."""
    others = torch.randn(cfg.samples - 1, generator=torch.Generator().manual_seed(cfg.seed), dtype=torch.float64)
    places = torch.linspace(-cfg.reach, cfg.reach, cfg.points, dtype=torch.float64)
    return places, {name: profile(each, others, places) for name, each in statistics(cfg.samples).items()}


def summary(cfg: Config, places: Tensor, profiles: dict[str, tuple[Tensor, Tensor]]) -> list[dict[str, Any]]:
    """Largest gradient and curvature, the gradient at 3, 10 and the end, and how it grows from half way to the end."""
    rows = []
    at = {f"at_{x:g}": int((places - x).abs().argmin()) for x in (3.0, 10.0, cfg.reach)}
    half = int((places - cfg.reach / 2).abs().argmin())
    for name, (gradient, curvature) in profiles.items():
        far, near = gradient[-1].abs().item(), gradient[half].abs().item()
        rows.append(
            {
                "statistic": name,
                "largest_gradient": gradient.abs().max().item(),
                "largest_curvature": curvature.abs().max().item(),
                **{key: gradient[index].item() for key, index in at.items()},
                "power": math.log2(far / near) if min(far, near) > 1e-9 else 0.0,
            }
        )
    return rows


def draw(places: Tensor, profiles: dict[str, tuple[Tensor, Tensor]]) -> Any:
    """Gradient near and far."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    near, far = figure.subplots(1, 2)
    middle = places.abs() <= 5
    for name, (gradient, _) in profiles.items():
        near.plot(places[middle], gradient[middle], label=name)
        far.semilogy(places, gradient.abs().clamp_min(1e-6), label=name)
    near.set(xlabel="place of one of the samples", title="Gradient in it", ylim=(-8, 8))
    far.set(xlabel="place of one of the samples", title="Its size", ylim=(1e-6, None))
    far.legend(fontsize=7)
    return figure


def main() -> None:
    cfg = parse(Config, description=__doc__)
    began = time.monotonic()
    places, profiles = measure(cfg)
    rows = summary(cfg, places, profiles)
    print(as_text([list(rows[0]), *([f"{v:.3g}" if isinstance(v, float) else v for v in r.values()] for r in rows)]))
    bound = 4 * math.sqrt(2 / math.pi)  # |dT/dx| = |2 int (phi_n - phi)(t) i t e^(i t x) w dt| <= 4 int |t| w dt
    kept = keep_experiment(
        "experiment_bounded_gradients",
        cfg.output,
        config=as_dict(cfg),
        rows=rows,
        findings={"bound of the gradient of Epps-Pulley": bound},
        seconds=time.monotonic() - began,
        figure=draw(places, profiles),
    )
    print(*kept, sep="\n")


if __name__ == "__main__":
    run(main)
