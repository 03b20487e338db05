"""Every recipe names the script that reads it, and that script takes it."""

import re
import runpy
from pathlib import Path

import pytest
import timm

import aotadmm_timm  # noqa: F401  (registers the models)
from aotadmm_timm.cli import build, read_yaml

TRAIN = Path(__file__).parents[2] / "train"


@pytest.mark.parametrize("path", sorted((TRAIN / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_recipe(path: Path) -> None:
    named = re.search(rf"train/(\w+\.py) --config train/recipes/{path.name}", path.read_text(encoding="utf-8"))
    assert named, "the recipe does not say how it is run"
    config = build(runpy.run_path(str(TRAIN / named[1]))["Config"], read_yaml(path), source=path.name)
    for name in (config.model, getattr(config, "checkpoint", None), getattr(config, "init", None)):
        assert name is None or name == "teacher" or timm.is_model(name.partition(".")[0])
