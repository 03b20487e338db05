"""Configurations: a frozen dataclass is the list of options; YAML fills it, command-line flags override it.

    @dataclass(frozen=True)
    class Config:
        lr: float = option(5e-4, "peak learning rate")

    cfg = parse(Config, description=__doc__)      # python script.py --config recipe.yaml --lr 1e-3

A field `batch_size` is the flag `--batch-size` and the YAML key `batch_size` (or `batch-size`).
A field that would be a Python keyword carries a trailing underscore: `import_` is `--import`.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from aotadmm_timm.errors import UserError, nearest
from aotadmm_timm.runs.config import DERIVED, read_yaml

T = TypeVar("T")


def option(default: Any, help: str, *, unit: str | None = None, choices: Sequence[Any] | None = None) -> Any:
    """A dataclass field that explains itself under `--help`."""
    metadata = {"help": help, "unit": unit, "choices": tuple(choices) if choices else None}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def key_of(field: dataclasses.Field) -> str:
    """The YAML key of a field; the flag is the same with hyphens."""
    return field.name.rstrip("_")


def _base_type(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        args = [a for a in typing.get_args(hint) if a is not type(None)]
        return args[0], True
    return hint, False


def _bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(text)


def _int(value: Any) -> int:
    """Exact for integers of any size; `1e3` and 1000.0 are integers, too."""
    if isinstance(value, bool):
        raise ValueError
    if not isinstance(value, float):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if value != int(value):
        raise ValueError
    return int(value)


def _convert(value: Any, hint: Any, key: str) -> Any:
    """`value` (a YAML value or command-line text) as the field's type; raises UserError naming the key."""
    base, optional = _base_type(hint)
    if value is None or (optional and isinstance(value, str) and value.lower() == "none"):
        if optional:
            return None
        raise UserError(f"{key}: needs a value, got none")
    origin, args = typing.get_origin(base), typing.get_args(base)
    try:
        if origin is tuple:
            parts = value.replace(",", " ").split() if isinstance(value, str) else list(value)
            kinds = [args[0]] * len(parts) if len(args) == 2 and args[1] is Ellipsis else list(args)
            if len(kinds) != len(parts):
                raise ValueError
            return tuple(_convert(p, k, key) for p, k in zip(parts, kinds, strict=True))
        if origin is dict:
            return _mapping(value)
        if base is bool:
            if isinstance(value, bool):
                return value
            return _bool(value)
        if base is int:
            return _int(value)
        if base is float:
            if isinstance(value, bool):
                raise ValueError
            if not math.isfinite(number := float(value)):
                raise ValueError
            return number
        return base(value)
    except (TypeError, ValueError, AttributeError, OverflowError) as err:
        if isinstance(err, UserError):
            raise
        name = getattr(base, "__name__", str(base)) if origin is None else str(base)
        raise UserError(f"{key}: expected {name}, got {value!r}") from None


_WORDS = {"yes": True, "on": True, "no": False, "off": False, "none": None}  # as YAML and the flags have them


def _mapping(value: Any) -> dict[str, Any]:
    """A mapping, or `key=value` pairs separated by blanks or commas (values read as JSON where they are JSON)."""
    if isinstance(value, Mapping):
        return dict(value)
    out: dict[str, Any] = {}
    for pair in str(value).replace(",", " ").split():
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError
        try:
            out[name] = json.loads(text.replace("True", "true").replace("False", "false").replace("None", "null"))
        except json.JSONDecodeError:
            out[name] = _WORDS.get(text.lower(), text)
    return out


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise UserError(message)


def _parser(cls: type, hints: dict[str, Any], description: str | None) -> _Parser:
    parser = _Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, add_help=True
    )
    parser.add_argument("--config", metavar="YAML", help="file of `key: value` lines; flags override it")
    for f in dataclasses.fields(cls):
        key = key_of(f)
        flag = "--" + key.replace("_", "-")
        default = f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[operator]
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        notes = [str(f.metadata.get("help", ""))]
        if f.metadata.get("unit"):
            notes.append(f"[{f.metadata['unit']}]")
        notes.append(f"(default: {shown})")
        text = " ".join(notes).replace("%", "%%")
        base, _ = _base_type(hints[f.name])
        if base is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text, dest=f.name)
        else:
            many = typing.get_origin(base) in (tuple, dict)
            choices = f.metadata.get("choices")
            metavar = "|".join(map(str, choices)) if choices else key.upper()
            parser.add_argument(
                flag, nargs="+" if many else None, default=None, help=text, dest=f.name, metavar=metavar
            )
    return parser


def build(cls: type[T], values: Mapping[str, Any], *, source: str = "configuration") -> T:
    """A config of type `cls` from a mapping; unknown keys are refused with the nearest known name.

    Raises UserError naming `source` and the key.
    """
    hints = typing.get_type_hints(cls)
    fields = {key_of(f): f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kwargs = {}
    for raw, value in values.items():
        key = str(raw).replace("-", "_").rstrip("_")
        if key not in fields:
            raise UserError(f"{source}: unknown key {raw!r}{nearest(key, list(fields))}")
        f = fields[key]
        kwargs[f.name] = converted = _convert(value, hints[f.name], f"{source}: {raw}")
        choices = f.metadata.get("choices")
        if choices and converted not in choices:
            raise UserError(f"{source}: {raw}: expected one of {', '.join(map(str, choices))}, got {value!r}")
    return cls(**kwargs)


def parse(
    cls: type[T], argv: Sequence[str] | None = None, *, description: str | None = None, positional: Sequence[str] = ()
) -> T:
    """A config of type `cls` from `--config` and flags.

    Args:
        cls: frozen dataclass whose fields were made by `option`.
        argv: arguments; None for the process's own.
        description: shown by `--help`, usually the script's docstring.
        positional: fields given by position instead of by flag, in order; required if their default is None.
    Raises: UserError for an unknown flag or key (the nearest known one is named) or a value of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    parser = _parser(cls, hints, description)
    for name in positional:
        action = next(a for a in parser._actions if a.dest == name)
        parser._remove_action(action)
        parser._option_string_actions.pop(action.option_strings[0])
        many = typing.get_origin(_base_type(hints[name])[0]) is tuple
        free = fields[name].default is not None
        nargs = ("*" if free else "+") if many else ("?" if free else None)
        parser.add_argument(name, nargs=nargs, help=action.help)
    given, rest = parser.parse_known_args(argv)
    if rest:
        flags = [s for a in parser._actions for s in a.option_strings]
        raise UserError(f"unknown argument {rest[0]}{nearest(rest[0].partition('=')[0], flags)}")
    values = read_yaml(given.config) if given.config else {}
    known = {key_of(f) for f in fields.values()}
    values = {key: value for key, value in values.items() if key not in DERIVED - known}
    cfg = build(cls, values, source=given.config or "config")
    overrides = {}
    for name, value in vars(given).items():
        if name == "config" or value is None:
            continue
        flag = name if name in positional else "--" + key_of(fields[name]).replace("_", "-")
        text = " ".join(value) if isinstance(value, list) and name not in positional else value
        overrides[name] = _convert(text, hints[name], flag)
        choices = fields[name].metadata.get("choices")
        if choices and overrides[name] not in choices:
            raise UserError(f"{flag}: expected one of {', '.join(map(str, choices))}, got {text!r}")
    return dataclasses.replace(cfg, **overrides)  # type: ignore[type-var]


def as_dict(cfg: Any) -> dict[str, Any]:
    """The config as plain YAML- and checkpoint-safe values (tuples become lists)."""
    return {key_of(f): list(v) if isinstance(v := getattr(cfg, f.name), tuple) else v for f in dataclasses.fields(cfg)}


def run(main: Callable[[], None]) -> None:
    """Calls a script's `main`; bad input ends in one line on stderr and exit status 2, an interrupt in status 130.

    AOTADMM_TIMM_TRACEBACK=1 shows where the error came from.
    """
    try:
        main()
    except (ValueError, OSError, ModuleNotFoundError) as err:
        if os.environ.get("AOTADMM_TIMM_TRACEBACK"):
            raise
        rank = os.environ.get("RANK", "0")
        where = f" (rank {rank})" if rank != "0" else ""
        print(f"error{where}: {' '.join(str(err).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
