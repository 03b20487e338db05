"""Evaluation mode that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode for all submodules of `models`; afterwards each is in the mode that it was in itself.

    `model.train(flag)` would instead give all of them one mode, and a layer that was frozen on purpose, such as a
    BatchNorm in evaluation mode within a model in training, would start to learn again unnoticed.
    """
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
