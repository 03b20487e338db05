"""A user's own function or class, by the name of its module or file."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from aotadmm_timm.errors import UserError


def find(place: str, name: str) -> Callable[..., Any]:
    """What `name` is in a module, or in the file `place` if that ends in .py; modules may lie in the working folder.

    Raises: UserError that says which part is missing.
    """
    spec = f"{place}:{name}"
    module = _import(place, spec)
    found: Any = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [key for key, value in vars(module).items() if callable(value)], n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise UserError(f"regularizer {spec!r}: {place!r} has no function {name!r}{hint}")
    return found


def _import(place: str, spec: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # a script has its own folder there, not the user's
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not Path(place).is_file():
            raise UserError(f"regularizer {spec!r}: there is no file {place}")
        found = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module
    except UserError:
        raise
    except Exception as error:  # the user's code may do anything
        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UserError(f"regularizer {spec!r}: cannot import {place!r} ({said})") from error
    finally:
        sys.path.remove(os.getcwd())


def check_call(function: Any, spec: str) -> None:
    """Refuse a function that cannot be called with (z, step): at once, not at the first step."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # built-in functions need not have one
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        raise UserError(f"regularizer {spec!r}: must be called as f(z, step), takes {signature} ({error})") from None
