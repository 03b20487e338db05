"""A method as a weighted sum of named terms."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .views import Views

Terms = dict[str, Tensor]


class Method(nn.Module):
    """Pretrains `backbone`: `forward(views, step)` -> {"loss": ..., every term detached, what else is worth logging}.

    A subclass says which terms there are and how they are weighted. What must survive a resume is in its state_dict.
    """

    backbone: nn.Module

    def terms(self, views: Views, step: int) -> tuple[Terms, Terms]:
        """The terms with their gradient, and what is only logged, "features" (B, d) of the first view among it."""
        raise NotImplementedError

    def weights(self) -> Mapping[str, float | Tensor]:
        """The weight of each term in the loss."""
        raise NotImplementedError

    def convention(self) -> dict[str, str | float]:
        """The choices without which its weights and losses cannot be compared with anyone else's."""
        raise NotImplementedError

    def forward(self, views: Views, step: int) -> Terms:
        terms, logged = self.terms(views, step)
        weights = self.weights()
        loss = torch.stack([weights[name] * term for name, term in terms.items()]).sum()
        return {"loss": loss, **{name: term.detach() for name, term in terms.items()}, **logged}
