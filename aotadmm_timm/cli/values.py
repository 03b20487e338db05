"""Values of options: what YAML or the command line says, as the type that the option has."""

import json
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from aotadmm_timm.errors import UserError

from .option import base_type


def convert(value: Any, hint: Any, key: str) -> Any:
    """`value` (a YAML value or command-line text) as type `hint`. Raises UserError naming `key`."""
    base, optional = base_type(hint)
    if value is None or (optional and isinstance(value, str) and value.lower() == "none"):
        if optional:
            return None
        raise UserError(f"{key}: needs a value, got none")
    origin, kinds = typing.get_origin(base), typing.get_args(base)
    try:
        if origin is dict:
            return dict(value) if isinstance(value, Mapping) else _pairs(str(value), key)
        if origin is tuple:
            parts = value.replace(",", " ").split() if isinstance(value, str) else list(value)
            if kinds[-1] is Ellipsis:
                kinds = kinds[:1] * len(parts)
            return tuple(convert(part, kind, key) for part, kind in zip(parts, kinds, strict=True))
        return _READERS[type(kinds[0]) if origin is Literal else base](value)
    except UserError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError):
        name = getattr(base, "__name__", str(base)) if origin is None else str(base)
        raise UserError(f"{key}: expected {name}, got {value!r}") from None


def convertible(hint: Any) -> bool:
    """Whether `convert` makes such values, mappings left aside."""
    base, _ = base_type(hint)
    if typing.get_origin(base) is tuple:
        return all(kind is Ellipsis or kind in _READERS for kind in typing.get_args(base))
    return base in _READERS or typing.get_origin(base) is Literal


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in ("true", "yes", "on", "1"):
        return True
    if value.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(value)


def _int(value: Any) -> int:
    """Exact for integers of any size; `1e3` and 1000.0 are integers, too."""
    if isinstance(value, bool):
        raise ValueError(value)
    if not isinstance(value, float):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if value != int(value):
        raise ValueError(value)
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(number := float(value)):
        raise ValueError(value)
    return number


def _str(value: Any) -> str:
    if isinstance(value, bool | list | dict):  # a bare `no` is false to YAML: in quotes it is a text
        raise ValueError(value)
    return str(value)


_READERS: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _str}
# as YAML and the flags have them
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None, "null": None}
_BRACKETS = {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}


def _pairs(text: str, key: str) -> dict[str, Any]:
    """`key=value` pairs separated by blanks or commas; what stands in brackets or quotes is one value."""
    pairs = {}
    for part in _parts(text):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"{key}: expected key=value pairs, a list as key=[1,2,3]; got {part!r}")
        pairs[name] = _value(value)
    return pairs


def _parts(text: str) -> list[str]:
    """Split at commas and blanks outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += _BRACKETS.get(sign, 0)
            if depth == 0 and (sign == "," or sign.isspace()):
                parts.append("")
                continue
        parts[-1] += sign
    return [part for part in parts if part]


def _value(text: str) -> Any:
    """A list, a word for yes, no or nothing, JSON, or bare text."""
    if text[:1] + text[-1:] in ("[]", "()"):
        return [_value(part) for part in _parts(text[1:-1])]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
