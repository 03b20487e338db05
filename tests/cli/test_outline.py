"""What a class takes, read from its source without importing what it imports."""

import inspect
import sys
import typing
from pathlib import Path
from typing import Literal

import pytest

from aotadmm_timm.cli import outline
from aotadmm_timm.engine.method_names import METHODS, load_method, outline_method
from aotadmm_timm.errors import UserError

SOURCE = '''
import a_module_that_is_not_there as missing
from elsewhere import Thing

Kind = Literal["one", "two"]
COUNT = 3

class First(missing.Base):
    """Says something.

    Args:
        width: of it.
    """

    value = missing.compute()

    def __init__(self, backbone: missing.Module, *, width: int, kind: Kind = "one",
                 sizes: tuple[int, ...] | None = (1, 2), rule: str | Thing | None = None,
                 scale: float = -0.5, times: int = COUNT, odd: Thing = missing.ONE):
        self.never_run()
'''


def test_signature_types_and_defaults(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    found = outline(path, "First", scale=2.0)
    assert found.__name__ == "First"
    assert (found.__doc__ or "").startswith("Says something.")
    parameters = inspect.signature(found).parameters
    assert list(parameters) == ["backbone", "width", "kind", "sizes", "rule", "scale", "times", "odd"]
    assert parameters["width"].default is inspect.Parameter.empty
    assert [parameters[n].default for n in ("kind", "sizes", "rule", "scale", "times")] == ["one", (1, 2), None, 2.0, 3]
    hints = found.__init__.__annotations__
    assert hints["kind"] == Literal["one", "two"]
    assert hints["sizes"] == tuple[int, ...] | None
    assert typing.get_args(hints["rule"]) == (str, type(None)) or hints["rule"] is str
    assert "a_module_that_is_not_there" not in sys.modules


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    with pytest.raises(UserError, match=r"source\.py: has no class 'Frist' \(nearest known: First\)"):
        outline(path, "Frist")
    path.write_text("def broken(:")
    with pytest.raises(UserError, match=r"source\.py: not Python"):
        outline(path, "First")
    with pytest.raises(UserError, match=r"missing\.py: No such file"):
        outline(tmp_path / "missing.py", "First")


@pytest.mark.parametrize("name", METHODS)
def test_outlines_of_our_methods_are_those_of_the_classes(name: str) -> None:
    """Same arguments and defaults, and every argument but the backbone can be an option with an explanation."""
    from aotadmm_timm.cli.constructor import _arguments

    drawn, real = (inspect.signature(cls).parameters for cls in (outline_method(name), load_method(name)))
    assert {k: p.default for k, p in drawn.items()} == {k: p.default for k, p in real.items()}
    fields = _arguments(outline_method(name), ("backbone",))
    assert fields.keys() == drawn.keys() - {"backbone", "backbone_terms"}
    vague = [key for key, (_, field) in fields.items() if field.metadata["help"] == f"{key} of {METHODS[name]}"]
    assert not vague


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("lejepaa", r"--method lejepaa: is lejepa, .* or FILE\.py:CLASS \(nearest known: lejepa\)"),
        ("nowhere.py:A", "no Python file 'nowhere.py'"),
        ("plain.py:Plain", "Plain is not a subclass of aotadmm_timm.methods.Method"),
        ("broken.py:Broken", "--method broken.py:Broken: ZeroDivisionError: division by zero"),
    ],
)
def test_methods_that_cannot_be_had(method: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("class Plain: ...\n")
    Path("broken.py").write_text("class Broken: ...\n1 / 0\n")
    with pytest.raises(UserError, match=message):
        load_method(method)
