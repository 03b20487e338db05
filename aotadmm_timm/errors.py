"""Errors that we raise on purpose: scripts print them as one line, any other keeps its traceback.

What kind of refusal it is, the type says; messages are for people and are never read by the code.
"""

import difflib
from collections.abc import Sequence


class UserError(ValueError):
    """Input that the user can mend."""


class ModelNotFound(UserError):
    """There is no model, run, file or set of weights of that name."""


class WeightsMismatch(UserError):
    """Weights that do not fit the model they are meant for."""


class DamagedFile(UserError):
    """A file that cannot be read, or that holds something else than it should."""


class Unreachable(UserError):
    """A server that does not answer, or not to this user."""


def nearest(name: str, known: Sequence[str]) -> str:
    """' (nearest known: ...)' if something resembles `name`, else ''."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (nearest known: {match[0]})" if match else ""
