"""The repository's scripts, run inside the test's process: no interpreter to start, errors arrive as exceptions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """A script such as "train/lejepa.py" as a module."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_script(path: str, *arguments: object) -> None:
    """Its main with these arguments."""
    before = sys.argv
    sys.argv = [path, *map(str, arguments)]
    try:
        load_script(path).main()
    finally:
        sys.argv = before


def call_script(monkeypatch: pytest.MonkeyPatch, path: str, *arguments: str) -> None:
    """Its main with these arguments, which the test goes on seeing."""
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    load_script(path).main()
