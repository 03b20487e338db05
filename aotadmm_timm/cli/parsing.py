"""A configuration from defaults, a YAML file and flags, in this order; refusals name what is wrong and what is near."""

import argparse
import dataclasses
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aotadmm_timm.errors import UserError, nearest

from .option import base_type, choices_of, flag_of, key_of, keys
from .values import convert

T = TypeVar("T")


def parse(
    cls: type[T], argv: Sequence[str] | None = None, *, description: str | None = None, positional: Sequence[str] = ()
) -> T:
    """A config of type `cls` from `--config` and flags.

    Args:
        cls: frozen dataclass whose fields were made by `option`. If it has an attribute `derived`, a class whose
            fields a run's config.yaml holds beside the options, these keys of the file are passed over.
        argv: arguments; None for the process's own.
        description: shown by `--help`, usually the script's docstring.
        positional: fields given by position instead of by flag, in order; required if their default is None.
    Raises: UserError for an unknown flag or key (the nearest known one is named) or a value of the wrong type.
    """
    given, rest = _parser(cls, positional, description).parse_known_args(argv)
    if rest:
        flags = ["--config", *(flag_of(name) for name in _fields(cls) if name not in positional)]
        raise UserError(f"unknown argument {rest[0]}{nearest(rest[0].partition('=')[0], flags)}")
    values = _from_mapping(cls, _recipe(cls, given.config), given.config or "")
    return cls(**{**values, **_from_flags(cls, given, positional)})


def peek(cls: type, key: str, argv: Sequence[str] | None = None) -> Any:
    """The value of one option of `cls`, from `--config` and flags, whatever else they say: it may decide on the rest.

    Raises: UserError for a value of the wrong type.
    """
    field = next(f for f in _fields(cls).values() if key_of(f) == key)
    lone = dataclasses.make_dataclass("Lone", [(field.name, typing.get_type_hints(cls)[field.name], field)])
    given, _ = _parser(lone, (), None, add_help=False).parse_known_args(argv)
    recipe = {k: v for k, v in _recipe(cls, given.config).items() if _plain(k) == key}
    values = {**_from_mapping(lone, recipe, given.config or ""), **_from_flags(lone, given, ())}
    return getattr(lone(**values), field.name)


def build(cls: type[T], values: Mapping[str, Any], *, source: str = "configuration") -> T:
    """A config of type `cls` from a mapping; unknown keys are refused with the nearest known name.

    Raises UserError naming `source` and the key.
    """
    return cls(**_from_mapping(cls, values, source))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError naming the file."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise UserError(f"--config {path}: {err.strerror or err}") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path}: not a text file") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(err).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected `key: value` lines, got a {type(values).__name__}")
    return values


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise UserError(message)


def _parser(cls: type, positional: Collection[str], description: str | None, *, add_help: bool = True) -> _Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser = _Parser(description=description, formatter_class=style, allow_abbrev=False, add_help=add_help)
    parser.add_argument("--config", metavar="YAML", help="file of `key: value` lines; flags override it")
    hints, fields = typing.get_type_hints(cls), _fields(cls)
    for name in [*positional, *(name for name in fields if name not in positional)]:
        field, (base, _) = fields[name], base_type(hints[name])
        many = typing.get_origin(base) in (tuple, dict)
        if name in positional:
            free = field.default is not None
            nargs = ("*" if free else "+") if many else ("?" if free else None)
            parser.add_argument(name, nargs=nargs, default=None, help=_explanation(field))
            continue
        metavar = "|".join(map(str, choices_of(field, hints[name]))) or key_of(field).upper()
        shape: dict[str, Any] = {"metavar": metavar, "nargs": "+" if many else None}
        if base is bool:
            shape = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(flag_of(name), dest=name, default=None, help=_explanation(field), **shape)
    return parser


def _explanation(field: dataclasses.Field) -> str:
    made = field.default_factory
    default = field.default if made is dataclasses.MISSING else made()
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    unit = f"[{field.metadata['unit']}] " if field.metadata.get("unit") else ""
    return f"{field.metadata.get('help', '')} {unit}(default: {shown})".replace("%", "%%")


def _fields(cls: type) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(cls)}


def _plain(key: Any) -> str:
    return str(key).replace("-", "_").rstrip("_")


def _converted(cls: type, values: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Field values of the right types; `said` is what messages call each field. Raises UserError."""
    hints, fields = typing.get_type_hints(cls), _fields(cls)
    converted = {name: convert(value, hints[name], said[name]) for name, value in values.items()}
    for name, value in converted.items():
        choices = choices_of(fields[name], hints[name])
        if choices and value is not None and value not in choices:
            raise UserError(f"{said[name]}: expected one of {', '.join(map(str, choices))}, got {values[name]!r}")
    return converted


def _from_mapping(cls: type, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    names = {key_of(field): field.name for field in _fields(cls).values()}
    for raw in values:
        if _plain(raw) not in names:
            raise UserError(f"{source}: unknown key {raw!r}{nearest(_plain(raw), list(names))}")
    said = {names[_plain(raw)]: f"{source}: {raw}" for raw in values}
    return _converted(cls, {names[_plain(raw)]: value for raw, value in values.items()}, said)


def _from_flags(cls: type, given: argparse.Namespace, positional: Collection[str]) -> dict[str, Any]:
    values = {name: value for name, value in vars(given).items() if name != "config" and value is not None}
    said = {name: name if name in positional else flag_of(name) for name in values}
    words = {k: " ".join(v) if isinstance(v, list) and k not in positional else v for k, v in values.items()}
    return _converted(cls, words, said)


def _recipe(cls: type, path: str | None) -> dict[str, Any]:
    """The values of a YAML file, but for what a run's config.yaml says beside its options: that follows from them."""
    derived = keys(cls.derived) - keys(cls) if hasattr(cls, "derived") else frozenset()
    return {key: value for key, value in read_yaml(path).items() if _plain(key) not in derived} if path else {}
