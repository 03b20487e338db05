"""Objectives: a pure function first, a thin module where there is state."""

from .gaussianity import SIGReg, sigreg
from .invariance import invariance, pairwise_invariance

__all__ = ["SIGReg", "invariance", "pairwise_invariance", "sigreg"]
