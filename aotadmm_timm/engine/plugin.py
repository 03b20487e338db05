"""Code of the user's that is imported before a run: `--import`."""

import importlib
import importlib.util
import sys
from pathlib import Path

from aotadmm_timm.errors import UserError


def import_plugin(name: str) -> None:
    """Import a module by name, or a Python file by path. Raises UserError naming it."""
    try:
        if name.endswith(".py"):
            path = Path(name)
            if not path.is_file():
                raise UserError(f"--import {name}: no such file")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module  # timm looks a model's file up here
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
    except UserError:
        raise
    except (ImportError, SyntaxError) as err:
        raise UserError(f"--import {name}: {err}") from None
    except (Exception, SystemExit) as err:  # the user's code may do anything
        raise UserError(f"--import {name}: {type(err).__name__}: {err}") from err
