"""What the command line says of a value, as the type that its option has."""

from typing import Any, Literal

import pytest

from aotadmm_timm.cli.values import convert, convertible
from aotadmm_timm.errors import UserError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("depth=3 tie=true name=x", {"depth": 3, "tie": True, "name": "x"}),
        ("depth=3,tie=True,name=x", {"depth": 3, "tie": True, "name": "x"}),
        ("depths=[2,2,6,2]", {"depths": [2, 2, 6, 2]}),
        ("depths=[2, 2, 6, 2] rate=0.1", {"depths": [2, 2, 6, 2], "rate": 0.1}),
        ("depths=(2,2),kernel=[[3,3],[1,1]],rate=1e-3", {"depths": [2, 2], "kernel": [[3, 3], [1, 1]], "rate": 1e-3}),
        ("names=[avg,'a, b',none] empty=[]", {"names": ["avg", "a, b", None], "empty": []}),
        ('cfg={"a":[1,2],"b":null}', {"cfg": {"a": [1, 2], "b": None}}),
        ("tie=no norm=yes drop=None pool=avg", {"tie": False, "norm": True, "drop": None, "pool": "avg"}),
        ("title='two words' size=0032", {"title": "two words", "size": "0032"}),
        ("formula=a=b", {"formula": "a=b"}),
        ("", {}),
    ],
)
def test_pairs(text: str, values: dict[str, Any]) -> None:
    assert convert(text, dict[str, Any], "--extra") == values


@pytest.mark.parametrize(
    ("text", "part"), [("depth", "depth"), ("depths=2,2,6", "2"), ("a=1 [2]", "[2]"), ("=3", "=3"), ("2a=3", "2a=3")]
)
def test_refused_pairs(text: str, part: str) -> None:
    with pytest.raises(UserError) as refused:
        convert(text, dict[str, Any], "--extra")
    assert str(refused.value) == f"--extra: expected key=value pairs, a list as key=[1,2,3]; got {part!r}"


def test_literals_have_the_type_of_their_values() -> None:
    assert convert("2", Literal[1, 2], "--n") == 2
    assert convert("a", Literal["a", "b"] | None, "--n") == "a"
    assert convert("none", Literal["a", "b"] | None, "--n") is None


def test_a_text_is_no_list_and_no_truth_value() -> None:
    assert convert(32, str, "name") == "32"
    for value in ([1], {"a": 1}, False):
        with pytest.raises(UserError, match="name: expected str"):
            convert(value, str, "name")


def test_types_that_options_can_have() -> None:
    assert all(
        map(convertible, (int, float | None, bool, str, tuple[int, ...], tuple[float, float] | None, Literal[1]))
    )
    assert not any(map(convertible, (None, list[int], dict[str, int], object, tuple[object, ...])))
