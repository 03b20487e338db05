"""Models are registered with timm as soon as timm is there: at once if it is imported already, else when it will be.

So `import aotadmm_timm` alone imports neither timm nor torch, which take seconds, and a script answers --help at once;
but nobody meets a timm that does not know the models.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


def register_with_timm() -> None:
    """Import the models now, or right after timm."""
    if "timm" in sys.modules:
        _import_models()
    else:
        sys.meta_path.insert(0, _AfterTimm())


def _import_models() -> None:
    importlib.import_module("aotadmm_timm.models")


class _AfterTimm(importlib.abc.MetaPathFinder):
    """Finds timm where the other finders do, with a loader that imports the models afterwards."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "timm":
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """timm's own loader, and the models once timm is whole."""

    def __init__(self, own: importlib.abc.Loader, finder: _AfterTimm) -> None:
        self.own, self.finder = own, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        sys.meta_path.remove(self.finder)
        _import_models()
