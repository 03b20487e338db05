"""The typed arguments of a constructor as options of a script: a method in a user's file brings its own."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from aotadmm_timm.errors import UserError

from .option import base_type, flag_of, option
from .parsing import parse
from .values import convertible

T = TypeVar("T")


def parse_with(
    cls: type[T],
    extra: Callable[..., Any],
    argv: Sequence[str] | None = None,
    *,
    supplied: Collection[str] = (),
    description: str | None = None,
) -> tuple[T, dict[str, Any]]:
    """A config with the options of `cls` and the typed arguments of a constructor, and what the constructor gets.

    An argument is an option if its type is int, float, bool, str, a Literal, a tuple of these, or one of them or None;
    its help is its line under "Args:" in the docstring. One without default must be given. An argument that `cls` has
    an option for, such as `seed`, gets that option's value. Arguments of other types keep their defaults.

    Args:
        cls: as for `parse`.
        extra: a class or function.
        argv: arguments; None for the process's own.
        supplied: names of arguments that the caller passes to it, which are no options.
        description: shown by `--help`.
    Returns: an instance of a subclass of `cls` that has all the options (`as_dict` gives them flat, so that they are
        recorded like any other), and keyword arguments for `extra`.
    Raises: as `parse`; UserError for an argument that is needed but cannot be an option, or is one of another type.
    """
    cfg = parse(with_arguments(cls, extra, supplied=supplied), argv, description=description)
    return cfg, arguments_from(cfg, extra, supplied=supplied)


def with_arguments(cls: type[T], extra: Callable[..., Any], *, supplied: Collection[str] = ()) -> type[T]:
    """`cls` with the arguments of `extra` as further options, as `parse_with` takes them."""
    own = {field.name.rstrip("_"): field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    fields = []
    for name, (hint, field) in _arguments(extra, supplied).items():
        if name not in own:
            fields.append((name, hint, field))
        elif base_type(hint)[0] != base_type(hints[own[name]])[0]:
            what = f"argument {name!r} would get the option {flag_of(name)}, which is of another type"
            raise UserError(f"{_name(extra)}: {what} ({hints[own[name]]})")
    return dataclasses.make_dataclass(cls.__name__, fields, bases=(cls,), frozen=True)


def arguments_from(cfg: Any, extra: Callable[..., Any], *, supplied: Collection[str] = ()) -> dict[str, Any]:
    """The keyword arguments for `extra`, from a configuration of `with_arguments`."""
    own = {field.name.rstrip("_"): field.name for field in dataclasses.fields(cfg)}
    arguments = _arguments(extra, supplied)
    values = {name: getattr(cfg, own[name]) for name in arguments}
    for name, (_, field) in arguments.items():
        if values[name] is None and field.metadata.get("needed"):
            raise UserError(f"{flag_of(name)} is needed: {_name(extra)} has no default for it")
    return values


def _name(extra: Callable[..., Any]) -> str:
    return getattr(extra, "__name__", repr(extra))


def _arguments(extra: Callable[..., Any], supplied: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """Type and field of each argument that can be an option."""
    hints = typing.get_type_hints(extra.__init__ if isinstance(extra, type) else extra)  # type: ignore[misc]
    texts = _documented(extra)
    found = {}
    for name, parameter in inspect.signature(extra).parameters.items():
        if name in supplied or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        hint: Any = hints.get(name, None if needed else type(parameter.default))
        if not convertible(hint):
            if needed:
                raise UserError(f"{_name(extra)}: argument {name!r} has neither a default nor a type that options have")
            continue
        field = option(None if needed else parameter.default, texts.get(name, f"{name} of {_name(extra)}"))
        if needed:
            hint, field = hint | None, dataclasses.field(default=None, metadata={**field.metadata, "needed": True})
        found[name] = (hint, field)
    return found


def _documented(extra: Callable[..., Any]) -> dict[str, str]:
    """What stands under "Args:" of a docstring, by argument."""
    for text in (extra.__doc__, extra.__init__.__doc__ if isinstance(extra, type) else None):  # type: ignore[misc]
        lines = inspect.cleandoc(text or "").partition("Args:\n")[2].splitlines()
        end = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines))
        if found := re.findall(r"^ {4}(\w+)[^:\n]*: *(.*(?:\n {5,}.*)*)", "\n".join(lines[:end]), re.MULTILINE):
            return {name: " ".join(said.split()).removesuffix(".") for name, said in found}
    return {}
