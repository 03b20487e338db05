"""Objectives: a pure function first, a thin module where there is state."""

from .directions import DIRECTIONS
from .gaussianity import SIGReg, sigreg
from .invariance import invariance, pairwise_invariance
from .registry import REGULARIZERS, Regularizer, build_regularizer, name_of, needs_normalize
from .spectral import SACReg, sacreg

__all__ = [
    "DIRECTIONS",
    "REGULARIZERS",
    "Regularizer",
    "SACReg",
    "SIGReg",
    "build_regularizer",
    "invariance",
    "name_of",
    "needs_normalize",
    "pairwise_invariance",
    "sacreg",
    "sigreg",
]
