"""The two papers' theory as functions: coding rates, Theorem 1 of AoT-ADMM, lambda-balance."""

from aotadmm_timm.theory.coding_rate import (
    coding_rate,
    coding_rate_gradient,
    compression_rate,
    compression_rate_gradient,
)
from aotadmm_timm.theory.objective import coding_rate_regularizer, normalize_energy

__all__ = [
    "coding_rate",
    "coding_rate_gradient",
    "coding_rate_regularizer",
    "compression_rate",
    "compression_rate_gradient",
    "normalize_energy",
]
