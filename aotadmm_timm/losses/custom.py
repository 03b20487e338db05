"""Regularizers in SIGReg's place, by name: two of the papers', or a user's own."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import all_gather
from aotadmm_timm.precision import at_least_float32
from aotadmm_timm.theory.expansion import covariance_constant
from aotadmm_timm.theory.objective import coding_rate_regularizer

from .spectral import sacreg

Regularizer = Callable[[Tensor, int], Tensor]


def coding_rate(z: Tensor, step: int) -> Tensor:
    """`theory.objective.coding_rate_regularizer` as a regularizer; z centred with tr Sigma = D."""
    return coding_rate_regularizer(z)


def spectral(z: Tensor, step: int) -> Tensor:
    """`sacreg` of each set of embeddings, N * 8 C_w / (D (D + 2)) times, the mean over the sets.

    The factor makes its value, to leading order around N(0, I) in directions that keep the trace, that of the
    covariance part of `sigreg` on the same N rows, as Eq. (A.23) does for the coding rate: a SIGReg weight keeps its
    strength.

    Args:
        z: (V, N, D) or (N, D); not normalised, SACReg holds mean and scale itself. Keep N at 4 D or more.
    """
    sets = at_least_float32(z).reshape(-1, *z.shape[-2:])
    gathered = [all_gather(rows) for rows in sets]
    count, d = gathered[0].shape
    factor = count * 8 * covariance_constant() / (d * (d + 2))
    return factor * torch.stack([sacreg(rows) for rows in gathered]).mean()


_NAMED: dict[str, Regularizer] = {"coding-rate": coding_rate, "sacreg": spectral}


def load_regularizer(spec: str) -> Regularizer:
    """What "MODULE:FUNCTION" names: called as f(z, step) with z (V, N, D) or (N, D), it returns a scalar.

    "coding-rate" names the coding rate of AoT-ADMM's Theorem 1, "sacreg" the statistic of lambda-JEPA; both are
    weighted as in Eq. (A.23), to be worth as much as SIGReg.
    A class is instantiated without arguments: an nn.Module with state works too. MODULE may lie in the working folder.
    The function sees the rows of its process only; `aotadmm_timm.distributed` has what it takes to look further.

    Raises: ValueError that says which part is missing.
    """
    if spec in _NAMED:
        return _NAMED[spec]
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"a regularizer is named MODULE:FUNCTION, got {spec!r}")
    sys.path.insert(0, os.getcwd())  # a script has its own folder there, not the user's
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's code may do anything
        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"regularizer {spec!r}: cannot import module {module_name!r} ({said})") from error
    finally:
        sys.path.remove(os.getcwd())
    found: Any = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [key for key, value in vars(module).items() if callable(value)], n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"regularizer {spec!r}: module {module_name!r} has no function {name!r}{hint}")
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise ValueError(f"regularizer {spec!r}: {name} cannot be made without arguments ({error})") from error
    _check_signature(found, spec)
    return found


def _check_signature(function: Any, spec: str) -> None:
    """Refuse a function that cannot be called with (z, step): at once, not at the first step."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # built-in functions need not have one
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        raise ValueError(f"regularizer {spec!r}: must be called as f(z, step), takes {signature} ({error})") from None
