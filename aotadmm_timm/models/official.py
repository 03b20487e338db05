"""Published checkpoints, whichever family wrote them, in this package's names."""

from torch import Tensor

from aotadmm_timm.models import crate

_FAMILIES = (crate,)


def translate(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Native names of a published state dict without wrappers; one that no family knows is returned as it is.

    Raises: WeightsMismatch as the families' `native_names`.
    """
    for family in _FAMILIES:
        native = family.native_names(state_dict)
        if native is not state_dict:
            return native
    return state_dict
