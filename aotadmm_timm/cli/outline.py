"""The outside of a class, read from its source: what its constructor takes is known before torch is imported."""

import ast
import builtins
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aotadmm_timm.errors import UserError, nearest


class _Unknown:
    """Stands for every name that only an import would explain; no option has such a type."""

    def __getattr__(self, name: str) -> "_Unknown":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> "_Unknown":
        return self

    def __or__(self, other: Any) -> Any:
        return self if other is None else other

    __ror__ = __or__


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        known = {**vars(builtins), **vars(typing), "Sequence": Sequence}
        return known.get(name, _Unknown())


def outline(path: Path, name: str, **defaults: Any) -> type:
    """A class with the name, docstring and constructor's signature of class `name` in a Python file; nothing else.

    Type aliases of the file's top level count (`Target = Literal["token", "mean"]`); a name that it imports counts only
    if it is one of `typing` or a built-in.

    Args:
        defaults: of its keyword arguments, in place of the file's.
    Raises: UserError if the file cannot be read, or has no such class.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except OSError as err:
        raise UserError(f"{path}: {err.strerror or err}") from None
    except (SyntaxError, UnicodeDecodeError) as err:
        raise UserError(f"{path}: not Python: {err}") from None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        raise UserError(f"{path}: has no class {name!r}{nearest(name, list(classes))}")
    names = _Names()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            names[target.id] = _value(node.value, names)
    body = classes[name].body
    made = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    found: dict[str, Any] = {"__doc__": ast.get_docstring(classes[name])}
    if made is not None:
        found["__init__"] = _signature(made, names, defaults)
    return type(name, (), found)


def _signature(node: ast.FunctionDef, names: _Names, defaults: dict[str, Any]) -> Any:
    """A function without content, with the arguments, types and defaults of `node`."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    scope: dict[str, Any] = {}
    shown = ", ".join([*(a.arg for a in positional), *(["*"] if arguments.kwonlyargs else [])])
    plain = ", ".join([shown, *(a.arg for a in arguments.kwonlyargs)])
    exec(f"def __init__({plain}): ...", scope)  # the names are those of a function that Python has parsed
    function = scope["__init__"]
    function.__doc__ = ast.get_docstring(node)
    function.__defaults__ = tuple(_value(value, names) for value in arguments.defaults)
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    function.__kwdefaults__ = {a.arg: _value(value, names) for a, value in pairs if value is not None} | defaults
    annotated = (a for a in (*positional, *arguments.kwonlyargs) if a.annotation is not None)
    function.__annotations__ = {a.arg: _value(a.annotation, names) for a in annotated}
    return function


def _value(node: ast.expr | None, names: _Names) -> Any:
    """A literal, a type or a combination of both; what else an expression may be stays unknown."""
    assert node is not None
    if any(isinstance(part, ast.Call | ast.Lambda | ast.Await | ast.Yield) for part in ast.walk(node)):
        return _Unknown()
    try:
        return eval(compile(ast.Expression(node), "<signature>", "eval"), {"__builtins__": {}}, names)
    except Exception:
        return _Unknown()
