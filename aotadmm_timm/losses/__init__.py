"""Objectives: a pure function first, a thin module where there is state."""

from .gaussianity import SIGReg, sigreg
from .invariance import invariance, pairwise_invariance
from .spectral import SACReg, sacreg

__all__ = ["SACReg", "SIGReg", "invariance", "pairwise_invariance", "sacreg", "sigreg"]
