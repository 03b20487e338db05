"""The conventions as tables: rows of cells, the header first."""

from collections.abc import Sequence

from aotadmm_timm.theory.conventions import CONVENTIONS, OURS, Convention, our_flags, translate

# Lambdas that somebody published, in the setting for which they did: name, lambda, batch, views, dim, where.
# Where a number does not matter for the translation (the batch, if both count rows), it is a common one.
PUBLISHED: tuple[tuple[str, float, int, tuple[int, int], int, str], ...] = (
    ("lejepa-paper", 0.05, 256, (2, 8), 64, "advised"),
    ("lejepa-minimal", 0.02, 256, (4, 0), 16, "the page's command"),
    ("stable-pretraining", 0.02, 256, (2, 6), 512, "default"),
    ("lightly", 0.05, 256, (2, 6), 64, "default"),
    ("eb_jepa", 10.0, 256, (2, 0), 128, "default, CIFAR-10"),
    ("visreg", 0.9, 128, (4, 6), 256, "ViT-B, ImageNet-1k"),
    ("lejepa-equation", 0.05, 256, (2, 8), 64, "if Eq. 9 is taken literally"),
)


def choices() -> list[list[str]]:
    """One row for each convention: its choices, a dot where they are ours."""
    rows = [["code", "form", "target", "statistic", "x N", "tested", "integral", "slices", "processes"]]
    for convention in CONVENTIONS.values():
        cells = _cells(convention)
        ours = _cells(OURS)
        same = [cell if convention is OURS or cell != our else "·" for cell, our in zip(cells, ours, strict=True)]
        rows.append([convention.name, *same])
    return rows


def _cells(convention: Convention) -> list[str]:
    c = convention
    target = {"pairs": "all pairs", "all": "mean of all views", "global": "mean of global views"}[c.target]
    target += ", of the local ones" if c.predicted == "local" else ""
    target += ", sum over dimensions" if c.dims == "sum" else ""
    form = {"convex": "(1 - l) inv + l reg", "sum": "inv + l reg", "weights": "three weights"}[c.form]
    tested = {"all": "all views", "local": "local views", "centers": "means over views"}[c.tested]
    tested += {"per view": ", each", "pooled": ", pooled"}[c.pooling] if c.tested != "centers" else ""
    return [
        form,
        target,
        c.statistic,
        "yes" if c.count else "no",
        tested if "pooling" not in c.unstated else "not stated",
        _stated(c, "quadrature", str(c.quadrature or "none")),
        _stated(c, "slices", f"{c.slices:,}"),
        _stated(c, "processes", c.processes),
    ]


def _stated(convention: Convention, field: str, value: str) -> str:
    return "not stated" if field in convention.unstated else value


def translations(
    lamb: float, source: Convention, *, batch: int, views: tuple[int, int], dim: int, processes: int
) -> list[list[str]]:
    """What `lamb` of the source is in each other code, and here with the flags that follow the source."""
    ours, flags = our_flags(source)
    targets = [*CONVENTIONS.values(), *([ours] if flags else [])]
    rows = [["in", "lambda", "learning rate", "why not"]]
    for target in targets:
        if target == source:
            continue
        found = translate(lamb, source, target, batch, views, dim, processes=processes)
        rows.append([target.name, *number_cells(found.lamb, found.lr_factor, found.exact), "; ".join(found.reasons)])
    return rows


def number_cells(lamb: float | None, lr_factor: float | None, exact: bool) -> list[str]:
    """Lambda and factor of the learning rate; with a tilde if they are the nearest only, a dash if there are none."""
    if lamb is None or lr_factor is None:
        return ["-", "-"]
    tilde = "" if exact else "~"
    return [f"{tilde}{lamb:.3g}", f"{tilde}x {lr_factor:.3g}"]


def published() -> list[list[str]]:
    """Published lambdas, as `train/lejepa.py` would take them."""
    rows = [["code", "its lambda", "setting", "here", "learning rate", "flags here", "why not exactly"]]
    for name, lamb, batch, views, dim, where in PUBLISHED:
        ours, flags = our_flags(CONVENTIONS[name])
        found = translate(lamb, name, ours, batch, views, dim)
        setting = f"{where}; {views[0]} + {views[1]} views, batch {batch}, {dim} dimensions"
        numbers = number_cells(found.lamb, found.lr_factor, found.exact)
        rows.append([name, f"{lamb:g}", setting, *numbers, flags or "none", "; ".join(found.reasons) or "it is exact"])
    return rows


def sources(names: Sequence[str] = tuple(CONVENTIONS)) -> list[str]:
    """Where each convention was read, and what it publishes of lambda, a line each."""
    found = [CONVENTIONS[name] for name in names]
    return [f"{c.name}: {c.read}. Its lambda: {c.published}." for c in found]
