"""SimCLR: views of an image find each other among those of all images of the batch."""

from functools import partial

from torch import Tensor, nn

from aotadmm_timm.errors import UserError
from aotadmm_timm.losses.contrastive import nt_xent

from .backbone_terms import BackboneTerms
from .base import Terms
from .joint_embedding import JointEmbedding, in_words
from .multi_view import Views, feature_width
from .projector import Projector
from .view_pairs import mean_over_pairs


class SimCLR(JointEmbedding):
    """NT-Xent, the mean over pairs of views   (SimCLR, arXiv:2002.05709)

    Args:
        backbone: timm model with num_classes=0.
        temperature: of the softmax over all other embeddings; the paper has 0.5 on CIFAR-10, 0.1 on ImageNet.
        projector: widths of its hidden layers, then the embedding's; the paper has one hidden layer as wide as the
            features, and 128.
        backbone_terms: regularizers of the backbone's features beside the loss.
    Differs from the paper, where there are two views: with more the loss is the mean over their pairs.
    """

    fewest_global_views = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        temperature: float = 0.2,
        projector: tuple[int, ...] = (2048, 128),
        backbone_terms: BackboneTerms | None = None,
    ) -> None:
        if temperature <= 0:
            raise UserError(f"temperature must be positive, got {temperature}")
        super().__init__(backbone, Projector(feature_width(backbone), *projector), backbone_terms)
        self.temperature, self.projector_dims = temperature, projector

    def choices(self) -> dict[str, str | float]:
        return {"method": "SimCLR", "temperature": self.temperature, "projector": in_words(self.projector_dims)}

    def embedding_weights(self) -> dict[str, float]:
        return {"nt_xent": 1.0}

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        return {"nt_xent": mean_over_pairs(partial(nt_xent, temperature=self.temperature), z)}
