"""The papers' theory as functions: coding rates, Theorem 1 of AoT-ADMM, lambda-balance, and what a lambda means."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .objective import coding_rate_regularizer, normalize_energy
    from .rates import (
        coding_rate,
        coding_rate_gradient,
        compression_rate,
        compression_rate_gradient,
        variational_compression_rate,
    )

__all__ = [
    "coding_rate",
    "coding_rate_gradient",
    "coding_rate_regularizer",
    "compression_rate",
    "compression_rate_gradient",
    "normalize_energy",
    "variational_compression_rate",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: parts of the theory are numbers and tables, and answer without torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "objective" if name in ("coding_rate_regularizer", "normalize_energy") else "rates"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
