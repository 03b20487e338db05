"""VICReg: views agree, each dimension varies, dimensions are uncorrelated."""

from torch import Tensor, nn

from aotadmm_timm.distributed import mean_over_batch
from aotadmm_timm.errors import UserError
from aotadmm_timm.losses.multivariate import WholeBatch, covariance_penalty, variance_hinge

from .backbone_terms import BackboneTerms
from .base import Terms
from .joint_embedding import JointEmbedding, in_words
from .multi_view import Views, feature_width
from .projector import Projector
from .view_pairs import mean_over_pairs


class VICReg(JointEmbedding):
    """invariance MSE + variance sum_v hinge(z_v) / V + covariance 2 sum_v c(z_v) / V   (VICReg, arXiv:2105.04906)

    With two views these are the released code's terms: the mean of both hinges, the sum of both covariances; the
    paper's Eq. 6 sums the hinges too. MSE is over pairs of views, batch and dimensions.

    Args:
        backbone: timm model with num_classes=0.
        invariance: weight of the distance of views.
        variance: weight of the hinge on each dimension's standard deviation; 0 leaves it out: embeddings collapse.
        covariance: weight of the squared off-diagonal covariances, divided by D.
        projector: widths of its hidden layers, then the embedding's (the expander); the paper has 8192 three times.
        backbone_terms: regularizers of the backbone's features beside the loss.
    """

    fewest_global_views = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        projector: tuple[int, ...] = (2048, 2048, 2048),
        backbone_terms: BackboneTerms | None = None,
    ) -> None:
        if min(invariance, variance, covariance) < 0:
            raise UserError(f"weights must be at least 0, got {(invariance, variance, covariance)}")
        super().__init__(backbone, Projector(feature_width(backbone), *projector), backbone_terms)
        self.term_weights = {"inv": invariance, "variance": variance, "covariance": covariance}
        self.projector_dims = projector
        self.hinge = WholeBatch(variance_hinge, min_rows=2)
        self.penalty = WholeBatch(covariance_penalty, min_rows=2)

    def choices(self) -> dict[str, str | float]:
        return {"method": "VICReg", **self.term_weights, "projector": in_words(self.projector_dims)}

    def embedding_weights(self) -> dict[str, float]:
        return self.term_weights

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        return {
            "inv": mean_over_pairs(lambda a, b: mean_over_batch((a - b).square()), z),
            "variance": self.hinge(z, step),
            "covariance": 2 * self.penalty(z, step),
        }
