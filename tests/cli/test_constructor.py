"""A constructor's typed arguments become options of the script that makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import yaml

from aotadmm_timm.cli import as_dict, option, parse_with, peek
from aotadmm_timm.errors import UserError


@dataclass(frozen=True)
class Config:
    method: str | None = option(None, "file and class")
    lr: float = option(0.1, "rate")
    seed: int = option(0, "seed of everything random")

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise UserError("--lr must be positive")


class Method:
    """A method.

    Args:
        backbone: a timm model.
        temperature: of the softmax; lower
            is sharper.
        target: what is predicted.
        widths: of the head: hidden
            layers, then embedding.
        seed: of its random draws.
    Raises: nothing: ever.
    """

    def __init__(
        self,
        backbone: object,
        *,
        momentum: float,
        temperature: float = 0.2,
        target: Literal["token", "mean"] = "mean",
        widths: tuple[int, ...] | None = (64, 32),
        center: bool = True,
        steps: int | None = None,
        guessed=3,  # type: ignore[no-untyped-def]
        schedule: Callable[[int], float] = float,
        seed: int = 7,
        **rest: int,
    ) -> None: ...


DEFAULTS = {
    "momentum": 0.9, "temperature": 0.2, "target": "mean", "widths": (64, 32), "center": True, "steps": None,
    "guessed": 3, "seed": 0,
}  # fmt: skip


def test_defaults_yaml_and_flags(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("lr: 0.5\nmomentum: 0.99\ntemperature: 0.3\n")
    given = ["--config", str(recipe), "--momentum", "0.9", "--widths", "8,4", "--no-center", "--target", "token"]
    cfg, values = parse_with(Config, Method, [*given, "--guessed", "4", "--seed", "5"], supplied=("backbone",))
    assert isinstance(cfg, Config)
    assert (cfg.lr, cfg.seed) == (0.5, 5)
    changed = {"temperature": 0.3, "widths": (8, 4), "center": False, "target": "token", "guessed": 4, "seed": 5}
    assert values == DEFAULTS | changed


def test_every_option_is_recorded_and_comes_back(tmp_path: Path) -> None:
    cfg, values = parse_with(Config, Method, ["--momentum", "0.9"], supplied=("backbone",))
    assert values == DEFAULTS
    recorded = as_dict(cfg)
    assert recorded == {"method": None, "lr": 0.1, **DEFAULTS, "widths": [64, 32]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(recorded))
    again = parse_with(Config, Method, ["--config", str(tmp_path / "config.yaml")], supplied=("backbone",))
    assert (as_dict(again[0]), again[1]) == (recorded, values)


def test_help_has_the_lines_of_the_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_with(Config, Method, ["--help"], supplied=("backbone",), description="what it does")
    words = " ".join(capsys.readouterr().out.split())
    assert "what it does" in words
    assert "--temperature TEMPERATURE of the softmax; lower is sharper (default: 0.2)" in words
    assert "--target token|mean what is predicted (default: mean)" in words
    assert "of the head: hidden layers, then embedding (default: 64 32)" in words
    assert "--momentum MOMENTUM momentum of Method (default: None)" in words
    assert "--center, --no-center" in words
    assert words.count("--seed SEED seed of everything random") == 1
    assert "schedule" not in words
    assert "nothing" not in words


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], r"--momentum is needed: Method has no default for it"),
        (["--momentum", "x"], r"--momentum: expected float, got 'x'"),
        (["--momentun", "1"], r"unknown argument --momentun \(nearest known: --momentum\)"),
        (["--momentum", "1", "--target", "sum"], r"--target: expected one of token, mean, got 'sum'"),
        (["--momentum", "1", "--lr", "0"], r"--lr must be positive"),
    ],
)
def test_refused_values(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_with(Config, Method, flags, supplied=("backbone",))


def test_refused_constructors() -> None:
    with pytest.raises(UserError, match="Method: argument 'backbone' has neither a default nor a type"):
        parse_with(Config, Method, [])

    def other(lr: str = "fast") -> None: ...

    with pytest.raises(UserError, match=r"other: argument 'lr' would get the option --lr, which is of another type"):
        parse_with(Config, other, [])


def test_one_option_is_known_before_the_others(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("method: a.py:A\nmomentum: 3\n")
    assert peek(Config, "method", ["--momentum", "1", "--method", "b.py:B", "--help"]) == "b.py:B"
    assert peek(Config, "method", ["--config", str(recipe), "--nothing"]) == "a.py:A"
    assert peek(Config, "method", []) is None
