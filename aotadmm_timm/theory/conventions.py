"""What a lambda of one public code is worth in another, if anything.

Each code minimizes a inv + b reg, where inv is a quadratic form of an image's views and reg a statistic of rows. Two
codes agree, for a suitable lambda and up to one factor of the loss, if their inv and their reg are proportional. There
is one function below for each choice that can spoil that, or change a factor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from aotadmm_timm.errors import UserError
from aotadmm_timm.theory.public_codes import CONVENTIONS, OURS, Convention, Quadrature, find

__all__ = ["CONVENTIONS", "OURS", "Convention", "Quadrature", "Translation", "find", "our_flags", "translate"]


@dataclass(frozen=True)
class Setting:
    """What the factors depend on: images in a step over all processes, views of an image, width of the embedding."""

    batch: int
    num_global: int
    num_local: int
    dim: int
    processes: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.num_global, self.dim, self.processes) < 1 or self.num_local < 0:
            raise UserError(
                f"batch, global views, dim and processes must be positive, local views not negative: {self}"
            )
        if self.num_views < 2:
            raise UserError("one view has no invariance: give two or more")
        if self.batch % self.processes:
            raise UserError(f"a batch of {self.batch} does not divide over {self.processes} processes")

    @property
    def num_views(self) -> int:
        return self.num_global + self.num_local


@dataclass(frozen=True)
class Translation:
    """Result of `translate`.

    Without `reasons` it is an equivalence: at every embedding the source's loss is `lr_factor` times the target's, with
    the target's lambda `lamb`. With reasons and a lambda it is the nearest there is; without a lambda, none exists.
    """

    lamb: float | None
    lr_factor: float | None
    reasons: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        because = "; ".join(self.reasons)
        if self.lamb is None or self.lr_factor is None:
            return f"no equivalent, because {because}"
        value = f"lambda {self.lamb:.4g}, learning rate x {self.lr_factor:.4g}"
        return value if self.exact else f"about {value}: no exact equivalent, because {because}"


class Step(NamedTuple):
    """What one choice contributes: source over target, of the invariance and of the regularizer; None: not comparable.

    `reason` says why the two differ by more than a factor, empty if they do not.
    """

    inv: float | None = 1.0
    reg: float | None = 1.0
    reason: str = ""


def translate(
    lamb: float,
    source: str | Convention,
    target: str | Convention,
    batch: int,
    views: int | tuple[int, int],
    dim: int,
    *,
    processes: int = 1,
) -> Translation:
    """The lambda of `target` that does what `lamb` does in `source`.

    Args:
        lamb: weight of the regularizer in the source's own form.
        source, target: conventions, or their names in `CONVENTIONS`.
        batch: images in a step, over all processes.
        views: of an image, (global, local), or their number if all are global.
        dim: width of the embedding.
        processes: that share the batch.
    Returns: lambda and the factor between the losses. Plain SGD takes the source's learning rate times that factor;
        Adam and AdamW, which do not feel a factor of the loss, the source's own (except for their epsilon and a
        clipped gradient norm).
    Raises: UserError for an unknown name, a lambda outside the source's form, or impossible numbers.
    """
    source = find(source) if isinstance(source, str) else source
    target = find(target) if isinstance(target, str) else target
    setting = Setting(batch, *((views, 0) if isinstance(views, int) else views), dim, processes)
    if source == target:
        return Translation(lamb, 1.0)
    steps = [choice(source, target, setting) for choice in CHOICES]
    reasons = tuple(step.reason for step in steps if step.reason)
    inv, reg = [math.prod(f) if None not in f else None for f in zip(*((s.inv, s.reg) for s in steps), strict=True)]
    if inv is None or reg is None or "weights" in (source.form, target.form):
        return Translation(None, None, reasons)
    inv_weight, reg_weight = form_weights(source, lamb)
    inv_weight, reg_weight = inv_weight * inv, reg_weight * reg
    if inv_weight == 0 and target.form == "sum":
        return Translation(None, None, (*reasons, "the sum form always keeps the invariance, this lambda drops it"))
    total = inv_weight + reg_weight if target.form == "convex" else inv_weight
    return Translation(reg_weight / total, total, reasons)


def our_flags(convention: Convention) -> tuple[Convention, str]:
    """This package's convention as near to another as the flags of `train/lejepa.py` bring it, and those flags.

    A translation from `convention` into the result is the most that can be said for a run here. The form is left
    convex: it is worth a factor only."""
    changes: dict[str, str] = {}
    if convention.target != "global":  # all pairs of views are all views and their mean, but for a factor
        changes["target"] = "all"
    if convention.pooling == "pooled" and convention.tested != "centers":
        changes["pooling"] = "pooled"
    flags = {"target": "--target all", "pooling": "--pool-views"}
    text = " ".join(flags[key] for key in changes)
    return replace(OURS, name=f"{OURS.name} {text}".rstrip(), **changes), text  # type: ignore[arg-type]


def form_weights(convention: Convention, lamb: float) -> tuple[float, float]:
    """Form: the weights of inv and reg, (1 - lamb, lamb) or (1, lamb)."""
    if not 0 <= lamb < math.inf or (convention.form == "convex" and lamb > 1):
        limit = "in [0, 1]" if convention.form == "convex" else "not negative"
        raise UserError(f"lambda of {convention.name} must be {limit}, got {lamb}")
    return (1 - lamb, lamb) if convention.form == "convex" else (1.0, lamb)


def weighting(source: Convention, target: Convention, setting: Setting) -> Step:
    """Form, where there is no lambda at all."""
    other = next((c.name for c in (source, target) if c.form == "weights"), None)
    return Step(reason=f"{other} has three weights, one of them on the backbone, and no lambda") if other else Step()


def compared_views(source: Convention, target: Convention, setting: Setting) -> Step:
    """Target, predicted views and gradient: whether the two pull the views of an image in proportional ways."""
    left, right = view_gradient(source, setting), view_gradient(target, setting)
    if left is None or right is None:
        return Step(inv=None, reason="views with a distance to the target are local ones only, and there are none")
    ratio = float((left * right).sum() / (right * right).sum())
    if np.allclose(left, ratio * right, rtol=0, atol=1e-12):
        return Step(inv=ratio)
    return Step(inv=None, reason=f"{_compared(source)} against {_compared(target)}")


def view_gradient(convention: Convention, setting: Setting) -> np.ndarray | None:
    """G (V, V), global views first: the gradient of inv in z_v is sum_w G_vw z_w, for one image and dimension.

    None if no view is predicted.
    """
    num_views = setting.num_views
    if convention.target == "pairs":  # mean over v < w of (z_v - z_w)^2
        return 4 / (num_views * (num_views - 1)) * (num_views * np.eye(num_views) - 1)
    first = setting.num_global if convention.predicted == "local" else 0
    sources = setting.num_global if convention.target == "global" else num_views
    if first == num_views:
        return None
    mean = np.zeros(num_views)
    mean[:sources] = 1 / sources
    gaps = np.eye(num_views)[first:] - mean  # rows: z_v - target, for each predicted view
    carried = gaps if convention.target_gradient else np.eye(num_views)[first:]
    return 2 / len(gaps) * carried.T @ gaps


def dimensions(source: Convention, target: Convention, setting: Setting) -> Step:
    """Mean or sum over dimensions: a factor D of the invariance."""
    size = {"mean": 1, "sum": setting.dim}
    return Step(inv=size[source.dims] / size[target.dims])


def statistics(source: Convention, target: Convention, setting: Setting) -> Step:
    """The statistic itself."""
    if source.statistic == target.statistic:
        return Step()
    return Step(reg=None, reason=f"{source.statistic} and {target.statistic} are different statistics")


def tested_views(source: Convention, target: Convention, setting: Setting) -> Step:
    """The views that are regularized."""
    left, right = [c.tested if setting.num_local or c.tested != "all" else "global" for c in (source, target)]
    if not setting.num_local and "local" in (left, right):
        return Step(reg=None, reason="local views only are regularized, and there are none")
    if left == right:
        return Step()
    return Step(reg=None, reason=f"{_TESTED[left]} are regularized against {_TESTED[right]}")


def pooling(source: Convention, target: Convention, setting: Setting) -> Step:
    """One test for each view or one for all rows; the same if one view is tested. Statistics of centers see no
    views."""
    if source.pooling == target.pooling or "centers" in (source.tested, target.tested):
        return Step()
    if source.tested == target.tested == "local" and setting.num_local == 1:
        return Step()
    how = {"per view": "each view is tested by itself", "pooled": "the rows of all views are tested as one batch"}
    return Step(reg=None, reason=f"{how[source.pooling]}, against: {how[target.pooling]}")


def row_count(source: Convention, target: Convention, setting: Setting) -> Step:
    """Factor N: the rows of one test, if the statistic is multiplied by them."""
    return Step(reg=_rows(source, setting) / _rows(target, setting))


def _rows(convention: Convention, setting: Setting) -> float:
    alone = convention.processes != "joint"
    rows = setting.batch // setting.processes if alone else setting.batch
    if convention.pooling == "pooled" and convention.tested != "centers":
        rows *= setting.num_local if convention.tested == "local" else setting.num_views
    scale = setting.processes if convention.processes == "alone, scaled" else 1
    return scale * (rows if convention.count else 1)


def over_processes(source: Convention, target: Convention, setting: Setting) -> Step:
    """Whether processes test their rows together. One process makes no difference."""
    joint = [c.processes == "joint" for c in (source, target)]
    if setting.processes == 1 or joint[0] == joint[1]:
        return Step()
    apart = source if joint[1] else target
    return Step(
        reg=None, reason=f"each process of {apart.name} tests its own rows, of the other all are tested together"
    )


def quadratures(source: Convention, target: Convention, setting: Setting) -> Step:
    """Knots and window. If the rules differ, the nearest factor is that of C_w, which both statistics have near N(0,
    I).

    C_w = 1/4 integral t^4 exp(-t^2) w(t) dt   (AoT-ADMM, Eq. A.6)
    """
    if source.quadrature is None or target.quadrature is None:
        return Step()
    (t, w), (s, v) = half_line(source.quadrature), half_line(target.quadrature)
    if len(t) == len(s) and np.allclose(t, s) and np.allclose(w, v):
        return Step()
    ratio = covariance_weight(source.quadrature) / covariance_weight(target.quadrature)
    return Step(reg=ratio, reason=f"the integral has {source.quadrature}, against {target.quadrature}")


def half_line(quadrature: Quadrature) -> tuple[np.ndarray, np.ndarray]:
    """Knots t >= 0, ascending, and weights of an even integrand over the whole line, the Gaussian window not
    included."""
    t = np.linspace(quadrature.low, quadrature.high, quadrature.knots)
    w = np.full(quadrature.knots, (quadrature.high - quadrature.low) / (quadrature.knots - 1))
    w[[0, -1]] /= 2
    if quadrature.low == 0:
        return t, 2 * w
    if quadrature.low != -quadrature.high:
        raise UserError(f"a quadrature is symmetric or starts at 0, got {quadrature}")
    upper = t > -1e-12
    return t[upper], np.where(t[upper] > 1e-12, 2, 1) * w[upper]


def covariance_weight(quadrature: Quadrature) -> float:
    """C_w of Eq. (A.6) for this rule and the window exp(-t^2 / 2)."""
    t, w = half_line(quadrature)
    return float((w * np.exp(-(t**2) / 2) * t**4 * np.exp(-(t**2))).sum() / 4)


def statements(source: Convention, target: Convention, setting: Setting) -> Step:
    """Choices that the source of a convention leaves open."""
    said = [
        f"{c.name} does not state {', '.join(c.unstated)}, read here as ours" for c in (source, target) if c.unstated
    ]
    return Step(reason="; ".join(said))


CHOICES: tuple[Callable[[Convention, Convention, Setting], Step], ...] = (
    weighting,
    compared_views,
    dimensions,
    statistics,
    tested_views,
    pooling,
    row_count,
    over_processes,
    quadratures,
    statements,
)

_TESTED = {
    "all": "all views",
    "global": "the global views",
    "local": "the local views",
    "centers": "the means over an image's views",
}


def _compared(convention: Convention) -> str:
    if convention.target == "pairs":
        return "distances between all pairs of views"
    predicted = "all" if convention.predicted == "all" else "the local"
    held = "" if convention.target_gradient else ", held fixed"
    return f"distances of {predicted} views to the mean of {convention.target} views{held}"
