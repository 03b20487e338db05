"""White-box transformers for timm; importing this package registers every model."""

import importlib
from typing import Any

from aotadmm_timm.registration import register_with_timm

__version__ = "0.1.0"

__all__ = ["FeatureExtractor", "check_contract", "models"]

register_with_timm()


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import aotadmm_timm` is fast.
    if name == "models":
        return importlib.import_module("aotadmm_timm.models")
    if name == "FeatureExtractor":
        from aotadmm_timm.extractor import FeatureExtractor

        return FeatureExtractor
    if name == "check_contract":
        from aotadmm_timm.contract import check_contract

        return check_contract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
