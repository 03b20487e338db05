"""Code of the user's: a module or file that is imported before a run (`--import`), a file that holds a method."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from aotadmm_timm.errors import UserError


def import_plugin(name: str) -> None:
    """Import a module by name, or a Python file by path. Raises UserError naming it."""
    if not name.endswith(".py"):
        _guarded(lambda: importlib.import_module(name), f"--import {name}")
    elif not Path(name).is_file():
        raise UserError(f"--import {name}: no such file")
    else:
        import_file(Path(name), f"--import {name}")


def import_file(path: Path, what: str) -> ModuleType:
    """A Python file as a module, once under its name. Raises UserError beginning with `what`."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == path.resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # timm looks a model's file up here
    _guarded(lambda: spec.loader.exec_module(module), what)  # type: ignore[union-attr]
    return module


def _guarded(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except UserError:
        raise
    except (ImportError, SyntaxError) as err:
        raise UserError(f"{what}: {err}") from None
    except (Exception, SystemExit) as err:  # the user's code may do anything
        raise UserError(f"{what}: {type(err).__name__}: {err}") from err
