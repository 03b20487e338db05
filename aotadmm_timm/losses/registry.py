"""Regularizers by name: every test of Gaussianity of the package, or a user's own."""

import ast
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aotadmm_timm.errors import UserError, nearest

from . import multivariate, univariate
from .custom import check_call, find
from .gaussianity import SIGReg
from .matching import RDMReg, quantile_match
from .multivariate import CodingRate, WholeBatch
from .slicing import Sliced
from .visreg import VISReg

Regularizer = Callable[[Tensor, int], Tensor]  # z (V, N, D) or (N, D), step -> scalar


@dataclass(frozen=True)
class Entry:
    """A named regularizer.

    Attributes:
        line: what it is, for lists.
        factory: a statistic of a sample (..., n), one of a batch (N, D), or a module; with its arguments.
        of: which of the three.
        rows: the fewest rows, over all processes, for which it is defined.
        scale_blind: does not change with the scale of z, so it cannot stop collapse alone.
        needs_normalize: has no minimum unless scale and center of z are fixed.
        pairwise: of a sample: holds something for every pair.
    """

    line: str
    factory: Callable[..., Any]
    of: Literal["sample", "batch", "module"] = "sample"
    rows: int = 1
    scale_blind: bool = False
    needs_normalize: bool = False
    pairwise: bool = False


REGULARIZERS: dict[str, Entry] = {
    "sigreg": Entry("Epps-Pulley test by quadrature along slices (LeJEPA)", SIGReg, of="module"),
    "epps-pulley": Entry("the same without quadrature: every pair of rows", univariate.epps_pulley, pairwise=True),
    "cramer-von-mises": Entry("squared distance of the distribution functions", univariate.cramer_von_mises),
    "watson": Entry("Cramer-von Mises that sees little of a shift", univariate.watson),
    "anderson-darling": Entry("Cramer-von Mises with the tails weighted up", univariate.anderson_darling),
    "shapiro-francia": Entry(
        "1 - squared correlation with Gaussian quantiles", univariate.shapiro_francia, rows=2, scale_blind=True
    ),
    "jarque-bera": Entry("skewness and kurtosis", univariate.jarque_bera, rows=2, scale_blind=True),
    "extended-jarque-bera": Entry("jarque-bera + vcreg", univariate.extended_jarque_bera, rows=2),
    "vcreg": Entry("likelihood of mean and variance along slices", univariate.vcreg, rows=2),
    "moments": Entry("moments along slices; order=4", univariate.moments),
    "vasicek": Entry("divergence with the entropy of spacings", univariate.vasicek, rows=2),
    "quantile-match": Entry("sliced Wasserstein distance to N(0, I)", quantile_match),
    "visreg": Entry("scale, center and shape apart (VISReg); scale=1, center=1, shape=1", VISReg, of="module", rows=2),
    "rdmreg": Entry(
        "sliced Wasserstein distance of ReLU(z) to a sparse sample (Rectified LpJEPA); p=1, mean=0, positive=False",
        RDMReg,
        of="module",
    ),
    "bhep": Entry("Epps-Pulley in D dimensions, every pair of rows; beta=1", multivariate.bhep, of="batch"),
    "henze-zirkler": Entry("bhep with its beta from N and D", multivariate.henze_zirkler, of="batch"),
    "mmd": Entry("kernel distance to N(0, I); bandwidth=sqrt(D)", multivariate.mmd, of="batch"),
    "ksd": Entry("kernel Stein discrepancy; bandwidth=sqrt(D), unbiased=False", multivariate.ksd, of="batch"),
    "vicreg": Entry(
        "variance hinge and covariance of VICReg; variance=1, covariance=0.04", multivariate.vicreg, of="batch", rows=2
    ),
    "coding-rate": Entry(
        "coding rate of AoT-ADMM's Theorem 1, implies --normalize; eps=0.5",
        CodingRate,
        of="module",
        needs_normalize=True,
    ),
    "sacreg": Entry("log-determinant of lambda-JEPA, better with N > 4 D rows", multivariate.scaled_sacreg, of="batch"),
}


def build_regularizer(
    spec: str = "sigreg", *, num_slices: int = 256, seed: int = 0, directions: str = "iid", normalize: bool = False
) -> Regularizer:
    """The regularizer that `spec` names: f(z, step) -> scalar, z (V, N, D), one test per view and then the mean.

    Args:
        spec: a name of `REGULARIZERS`, or MODULE:FUNCTION or FILE.py:FUNCTION of the user's own (a function f(z, step)
            or a class, instantiated); arguments follow in parentheses: "moments(order=6)", "my_file.py:Mine(alpha=2)".
            A user's own gets num_slices, seed and directions too if its signature has them, and sees the rows of its
            process only; `aotadmm_timm.distributed` has what it takes to look further.
        num_slices, seed, directions: of the slices, where there are any.
        normalize: whether scale and centre of z are fixed before it. Without that, what does not see the scale is
            refused.
    Raises: UserError that says what is unknown, missing, or cannot be called.
    """
    built = _build(spec, {"num_slices": num_slices, "seed": seed, "directions": directions}, normalize)
    if isinstance(built, nn.Module | functools.partial):
        built.spec = spec  # type: ignore[union-attr]
    return built


def needs_normalize(spec: str) -> bool:
    """Whether the named regularizer works on embeddings of fixed center and scale only."""
    entry = REGULARIZERS.get(_parse(spec)[0])
    return entry is not None and entry.needs_normalize


def name_of(regularizer: Regularizer) -> str:
    """What `build_regularizer` was asked for; of anything else, where it is defined."""
    named = regularizer if hasattr(regularizer, "__qualname__") else type(regularizer)
    return getattr(regularizer, "spec", f"{named.__module__}:{named.__qualname__}")


def _build(spec: str, offered: dict[str, Any], normalize: bool) -> Regularizer:
    name, arguments = _parse(spec)
    if ":" in name:
        place, _, found = name.rpartition(":")
        return _custom(find(place, found), spec, arguments, offered)
    if name not in REGULARIZERS:
        raise UserError(
            f"unknown regularizer {name!r}{nearest(name, list(REGULARIZERS))}: one of {', '.join(REGULARIZERS)}, "
            "or MODULE:FUNCTION"
        )
    entry = REGULARIZERS[name]
    if entry.scale_blind and not normalize:
        raise UserError(
            f"regularizer {name!r} does not see the scale of the embeddings: alone it lets them collapse. "
            "Fix the scale with --normalize, or take another"
        )
    if entry.of == "module":
        return _call(entry.factory, spec, arguments, _accepted(entry.factory, offered))
    statistic = functools.partial(entry.factory, **_checked(entry.factory, spec, arguments, skip=1))
    statistic.__name__ = spec  # type: ignore[attr-defined]
    try:
        statistic(torch.zeros(2, 2, dtype=torch.float32))
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UserError(f"regularizer {spec!r}: {error}") from error
    if entry.of == "batch":
        return WholeBatch(statistic, min_rows=entry.rows)
    return Sliced(statistic, **offered, min_rows=entry.rows, pairwise=entry.pairwise)


def _parse(spec: str) -> tuple[str, dict[str, Any]]:
    """ "NAME(a=1, b='x')" -> NAME and its arguments, which are literals."""
    match = re.fullmatch(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", spec, re.DOTALL)
    if not match:
        raise UserError(f"a regularizer is NAME or NAME(argument=value, ...), got {spec!r}")
    name, inside = match[1], match[2] or ""
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise UserError(f"regularizer {spec!r}: arguments are NAME=VALUE, numbers, words in quotes or True") from None


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # built-in functions need not have one
        return {}


def _accepted(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    parameters = _parameters(factory)
    return {name: value for name, value in offered.items() if name in parameters}


def _checked(factory: Callable[..., Any], spec: str, arguments: dict[str, Any], skip: int = 0) -> dict[str, Any]:
    """The arguments, if the factory has them all; `skip` parameters at its front are not the user's."""
    known = list(_parameters(factory))[skip:]
    for name in arguments:
        if name not in known:
            raise UserError(
                f"regularizer {spec!r} has no argument {name!r}{nearest(name, known)}"
                + (f": it takes {', '.join(known)}" if known else ": it takes none")
            )
    return arguments


def _call(factory: Callable[..., Any], spec: str, arguments: dict[str, Any], offered: dict[str, Any]) -> Any:
    made = factory(**(offered | _checked(factory, spec, arguments)))
    check_call(made, spec)
    return made


def _custom(found: Callable[..., Any], spec: str, arguments: dict[str, Any], offered: dict[str, Any]) -> Regularizer:
    offered = _accepted(found, offered)
    if isinstance(found, type):
        try:
            return _call(found, spec, arguments, offered)
        except TypeError as error:
            raise UserError(f"regularizer {spec!r}: cannot be made with {offered | arguments} ({error})") from error
    given = offered | _checked(found, spec, arguments, skip=2)
    function = functools.partial(found, **given) if given else found
    check_call(function, spec)
    return function
