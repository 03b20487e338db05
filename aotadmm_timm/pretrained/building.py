"""timm's factory, with what it says to a bad argument or to weights that do not fit turned into one line."""

import pickle
from collections.abc import Sequence
from typing import Any

import timm
from safetensors import SafetensorError

from aotadmm_timm.errors import DamagedFile, ModelNotFound, UserError, WeightsMismatch, nearest
from aotadmm_timm.pretrained.hub_requests import hub_refusals

# What constructors, forward passes and loaders say to arguments and sizes that they were not made for.
REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError
)  # fmt: skip


def check_name(name: str) -> None:
    """Refuse what is not registered with timm; a tag behind the name is not looked at. Raises ModelNotFound."""
    if not timm.is_model(name.partition(".")[0]):
        raise ModelNotFound(f"unknown model {name!r}{nearest(name, timm.list_models())}")


def build_model(name: str, attempts: Sequence[dict[str, Any]] = ({},), **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """`timm.create_model(name, ...)` with the first of several sets of extra arguments that its constructor knows.

    Args:
        name: anything that timm's factory takes.
        attempts: sets of arguments; a later one is tried if the constructor does not know an argument of an earlier.
        kwargs: arguments of every attempt; they win over `attempts`.
    Returns: the model, and the set that was taken.
    Raises: UserError in one line: WeightsMismatch where tensors do not fit, DamagedFile where they cannot be read.
    """
    failure: Exception | None = None
    for extra in attempts:
        arguments = {**extra, **kwargs}
        try:
            with hub_refusals(name):
                return timm.create_model(name, **arguments), extra
        except TypeError as err:  # the constructor does not know an argument
            failure = err
        except WeightsMismatch as err:
            raise WeightsMismatch(f"does not fit {name}: {err}") from None
        except UserError:
            raise
        except pickle.UnpicklingError:
            raise DamagedFile(f"model {name}: refused: its weights are a pickle that holds more than tensors") from None
        except (SafetensorError, EOFError) as err:
            raise DamagedFile(f"model {name}: {first_line(err)}") from None
        except REFUSALS as err:
            if arguments.get("pretrained") and _takes(name, arguments):
                raise WeightsMismatch(f"does not fit {name}: {_some_lines(err)}") from None
            raise UserError(f"model {name}: {first_line(err)}") from None
    raise UserError(f"model {name}: {failure}")


def _takes(name: str, arguments: dict[str, Any]) -> bool:
    """Whether the constructor by itself takes these arguments, so that weights were what it stumbled over."""
    try:
        timm.create_model(name, **{**arguments, "pretrained": False})
    except REFUSALS:
        return False
    return True


def first_line(err: BaseException) -> str:
    """The first line of an error's message; of one that says little by itself, behind its type's name."""
    kind, text = type(err).__name__, str(err).strip()
    if not text:
        return kind
    line = text.splitlines()[0]
    return f"{kind}: {line}" if isinstance(err, ArithmeticError | LookupError) else line


def _some_lines(err: BaseException, limit: int = 500) -> str:
    """torch names missing and unexpected tensors below a first line that says only that there are some."""
    text = " ".join(" ".join(line.split()) for line in str(err).splitlines()[:3]) or type(err).__name__
    return text if len(text) <= limit else text[:limit] + " ..."
