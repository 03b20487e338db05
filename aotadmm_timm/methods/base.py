"""What a pretraining method is: the one interface between a method and the harness that trains it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .multi_view import Views

Terms = dict[str, Tensor]


class Output(NamedTuple):
    """What a method makes of a batch of views.

    Attributes:
        loss: scalar to minimize, with its gradient.
        terms: scalars without gradient, logged by name.
        features: backbone features (B, d) of the first view, without gradient; the online probe learns on them.
        embeddings: (V, B, D) without gradient; what `Method.diagnostics` looks at.
    """

    loss: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})
    features: Tensor | None = None
    embeddings: Tensor | None = None


class Plan(NamedTuple):
    """The run that a method is about to be trained in; `batch_size` counts the images of one process and pass."""

    steps: int
    steps_per_epoch: int
    batch_size: int
    num_global: int
    num_local: int


class Method(nn.Module, ABC):
    """Pretrains `backbone`, a timm model without classifier.

    Subclasses write `forward` and `convention`; everything else has a default. What must survive a resume is in the
    state_dict: parameters, buffers, `get_extra_state`. Random numbers are drawn from (seed, step), so that they need
    not survive.

    Attributes:
        fewest_steps, fewest_global_views: of a run that makes sense; shorter runs are refused by name before training.
        plan: the run, from `begin` on.
    """

    backbone: nn.Module
    plan: Plan
    fewest_steps: int = 1
    fewest_global_views: int = 1

    @abstractmethod
    def forward(self, views: Views, step: int) -> Output:
        """The loss of one batch; `step` counts optimizer steps from 0."""

    @abstractmethod
    def convention(self) -> dict[str, str | float]:
        """The choices without which its weights and losses cannot be compared with anyone else's."""

    @property
    def encoder(self) -> nn.Module:
        """What is evaluated and exported: the backbone, or a part of the method of the same architecture."""
        return self.backbone

    def begin(self, plan: Plan) -> None:
        """Called once, before the first step.

        Raises: UserError if such a run makes no sense for the method, naming the option to change.
        """
        self.plan = plan

    def weight_decay(self, step: int, base: float) -> float:
        """Weight decay of step `step` for the parameters that are decayed; `base` is --weight-decay."""
        return base

    def after_backward(self, step: int) -> None:
        """Called between the last backward pass of a step and the optimizer: gradients may be changed."""

    def after_step(self, done: int) -> None:
        """Called after the optimizer; `done` steps are done. Momentum teachers move here."""

    def diagnostics(self, output: Output, epoch: int) -> dict[str, float]:
        """Numbers to log after an epoch, from the output of its last batch on this process."""
        return {}


class Parts(NamedTuple):
    """Terms with their gradient before they are weighted, and the rest of an `Output`."""

    terms: Terms
    logged: Mapping[str, Tensor] = MappingProxyType({})
    features: Tensor | None = None
    embeddings: Tensor | None = None


class WeightedSum(Method):
    """A method whose loss is a weighted sum of named terms. A subclass says which terms, and how they are weighted."""

    @abstractmethod
    def parts(self, views: Views, step: int) -> Parts:
        """The terms, each with its gradient."""

    @abstractmethod
    def weights(self) -> Mapping[str, float | Tensor]:
        """The weight of each term in the loss."""

    def forward(self, views: Views, step: int) -> Output:
        parts = self.parts(views, step)
        weights = self.weights()
        loss = torch.stack([weights[name] * term for name, term in parts.terms.items()]).sum()
        terms = {**{name: term.detach() for name, term in parts.terms.items()}, **parts.logged}
        return Output(loss, terms, parts.features, parts.embeddings)
