"""The one filter through which every checkpoint enters a model of this package."""

from torch import Tensor, nn


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Map a checkpoint onto the names and shapes of `model`."""
    return state_dict
