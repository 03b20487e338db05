"""`python -m aotadmm_timm`: every name that a script takes stands in its list, with a line."""

from pathlib import Path

import pytest
import timm

from aotadmm_timm.__main__ import SECTIONS, listing, main
from aotadmm_timm.engine.method_names import METHODS
from aotadmm_timm.errors import UserError
from aotadmm_timm.losses import REGULARIZERS

WEIGHTS = Path(__file__).parents[1] / "aotadmm_timm" / "weights"
RECIPES = Path(__file__).parents[1] / "train" / "recipes"


def rows(section: str) -> dict[str, str]:
    return {name: line for name, _, line in (row.strip().partition(" ") for row in listing(section).splitlines()[1:])}


def test_all_names_have_a_line() -> None:
    assert rows("methods").keys() == METHODS.keys()
    assert rows("regularizers").keys() == REGULARIZERS.keys()
    assert rows("tags").keys() == {path.stem for path in WEIGHTS.glob("*.safetensors")}
    assert rows("recipes").keys() == {path.name for path in RECIPES.glob("*.yaml")}
    assert {"aot_admm_base", "crate_tiny", "tost_tiny", "vit_small_mlpfree"} <= rows("models").keys()
    assert not set(rows("models")) - set(timm.list_models())
    assert all(line.strip() for section in SECTIONS for line in rows(section).values())


def test_sections_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    main(["methods"])
    out = capsys.readouterr().out
    assert out.startswith("methods: python train/pretrain.py --method NAME")
    assert "recipes" not in out
    with pytest.raises(UserError, match=r"method: is one of models, .*nearest known: methods"):
        main(["method"])
