"""White-box transformers for timm; importing this package registers every model."""

from typing import Any

from aotadmm_timm import models

__version__ = "0.1.0"

__all__ = ["FeatureExtractor", "check_contract", "models"]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import aotadmm_timm` needs the model code only.
    if name == "FeatureExtractor":
        from aotadmm_timm.hub.extract import FeatureExtractor

        return FeatureExtractor
    if name == "check_contract":
        from aotadmm_timm.contract import check_contract

        return check_contract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
