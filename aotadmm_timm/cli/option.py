"""Options as fields of a dataclass, each declared once with all that is known of it."""

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

Fact = Literal["resumable", "repeats", "published", "place"]


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    choices: Sequence[Any] = (),
    resumable: bool = False,
    repeats: bool = False,
    published: bool = True,
    machine: bool = False,
    place: bool = False,
) -> Any:
    """A dataclass field that explains itself under `--help`, with what else is known of the option.

    Args:
        default: value if it is not given; each configuration has its own copy of a mapping.
        help: shown by `--help`.
        unit: of a number, shown by `--help`.
        choices: the values it may have; a `Literal` type says the same.
        resumable: it may differ when a run is resumed, as it changes neither what a step computes nor what is logged.
        repeats: runs that differ in it are repetitions of one another.
        published: records and model cards say it.
        machine: it tells of the machine, not of the result: resumable, repeats, not published.
        place: a place on the machine: its flag is left out of published commands, too.
    """
    machine |= place
    facts = {"resumable": resumable or machine, "repeats": repeats or machine, "published": published and not machine}
    metadata = {"help": help, "unit": unit, "choices": tuple(choices), "place": place, **facts}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def key_of(field: dataclasses.Field) -> str:
    """The YAML key of a field; the flag is the same with hyphens."""
    return field.name.rstrip("_")


def flag_of(name: str) -> str:
    """The flag of a field or YAML key: `batch_size` is `--batch-size`."""
    return "--" + name.rstrip("_").replace("_", "-")


def keys(cls: type, fact: Fact | None = None, *, holds: bool = True) -> frozenset[str]:
    """The YAML keys of a configuration class; with `fact`, those of which it holds, or does not."""
    return frozenset(key_of(f) for f in dataclasses.fields(cls) if fact is None or f.metadata[fact] == holds)


def base_type(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], len(kinds) < len(typing.get_args(hint))
    return hint, False


def choices_of(field: dataclasses.Field, hint: Any) -> tuple[Any, ...]:
    """The values that an option may have; empty if there is no such list."""
    base, _ = base_type(hint)
    return typing.get_args(base) if typing.get_origin(base) is Literal else field.metadata.get("choices", ())


def as_dict(cfg: Any) -> dict[str, Any]:
    """The config as plain YAML- and checkpoint-safe values (tuples become lists)."""
    return {key_of(f): list(v) if isinstance(v := getattr(cfg, f.name), tuple) else v for f in dataclasses.fields(cfg)}
