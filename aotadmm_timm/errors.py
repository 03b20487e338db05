"""Errors that we raise on purpose: scripts print them as one line, any other keeps its traceback."""

import difflib
from collections.abc import Sequence


class UserError(ValueError):
    """Input that the user can mend."""


def nearest(name: str, known: Sequence[str]) -> str:
    """' (nearest known: ...)' if something resembles `name`, else ''."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (nearest known: {match[0]})" if match else ""
