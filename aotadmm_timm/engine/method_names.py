"""Pretraining methods by name, and any class of a user's by file; without importing one of them."""

import importlib
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import outline
from aotadmm_timm.errors import UserError, nearest
from aotadmm_timm.plugin import import_file

METHOD_FOLDER = Path(__file__).parents[1] / "methods"
# name: class, in the file of that name in methods/
METHODS = {
    "lejepa": "LeJEPA",
    "lambda_jepa": "LambdaJEPA",
    "simclr": "SimCLR",
    "byol": "BYOL",
    "dino": "DINO",
    "simdino": "SimDINO",
    "vicreg": "VICReg",
    "visreg": "VISReg",
}


def locate(method: str) -> tuple[Path, str]:
    """File and class that `method` means: a name of METHODS, or FILE.py:CLASS.

    Raises: UserError naming what is near.
    """
    if method in METHODS:
        return METHOD_FOLDER / f"{method}.py", METHODS[method]
    file, colon, name = method.rpartition(":")
    if not colon:
        known = ", ".join(METHODS)
        raise UserError(f"--method {method}: is {known} or FILE.py:CLASS{nearest(method, list(METHODS))}")
    if not file.endswith(".py") or not Path(file).is_file():
        raise UserError(f"--method {method}: no Python file {file!r}")
    return Path(file), name


def outline_method(method: str, **defaults: Any) -> type:
    """What can be said of a method's constructor from its source; `defaults` replace those of its arguments."""
    path, name = locate(method)
    return outline(path, name, **defaults)


def load_method(method: str) -> Any:
    """The class, imported.

    Raises: UserError if importing it fails, or it is no `Method`.
    """
    from aotadmm_timm.methods.base import Method

    path, name = locate(method)
    if method in METHODS:
        module = importlib.import_module(f"aotadmm_timm.methods.{method}")
    else:
        module = import_file(path, f"--method {method}")
    found = getattr(module, name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"--method {method}: {name} is not a subclass of aotadmm_timm.methods.Method")
    return found


def make_backbone_terms(backbone: Any, **arguments: Any) -> Any:
    """The regularizers of a backbone that stand beside a method's own terms."""
    from aotadmm_timm.methods.backbone_terms import BackboneTerms
    from aotadmm_timm.methods.multi_view import feature_width

    return BackboneTerms(feature_width(backbone), **arguments)


def short_name(method: str) -> str:
    """A method's name in that of a run folder: of FILE.py:CLASS only what CLASS says."""
    return method if method in METHODS else Path(method.rpartition(":")[0]).stem
