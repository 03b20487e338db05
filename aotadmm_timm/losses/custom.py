"""A user's own regularizer by name."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from aotadmm_timm.theory.objective import coding_rate_regularizer

Regularizer = Callable[[Tensor, int], Tensor]


def coding_rate(z: Tensor, step: int) -> Tensor:
    """`theory.objective.coding_rate_regularizer` as a regularizer; z centred with tr Sigma = D."""
    return coding_rate_regularizer(z)


def load_regularizer(spec: str) -> Regularizer:
    """What "MODULE:FUNCTION" names: called as f(z, step) with z (V, N, D) or (N, D), it returns a scalar.

    "coding-rate" names the coding rate of AoT-ADMM's Theorem 1, weighted by Eq. (A.23) to be worth as much as SIGReg.
    A class is instantiated without arguments: an nn.Module with state works too. MODULE may lie in the working folder.
    The function sees the rows of its process only; `aotadmm_timm.distributed` has what it takes to look further.

    Raises: ValueError that says which part is missing.
    """
    if spec == "coding-rate":
        return coding_rate
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
