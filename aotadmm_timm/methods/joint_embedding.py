"""What methods have in common whose terms are of projected views: backbone, projector, and terms on the backbone."""

from abc import abstractmethod

from torch import Tensor, nn

from aotadmm_timm.precision import at_least_float32

from .backbone_terms import BackboneTerms
from .base import Parts, Terms, WeightedSum
from .multi_view import Views, backbone_features, feature_width


class JointEmbedding(WeightedSum):
    """backbone -> h (V, B, d) -> projector -> z (V, B, D); a subclass says which terms z has, and their weights.

    Args:
        backbone: timm model with num_classes=0.
        projector: (N, d) -> (N, D).
        backbone_terms: regularizers of h beside the method's own terms; none if not given.
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module, backbone_terms: BackboneTerms | None = None) -> None:
        super().__init__()
        self.backbone, self.projector = backbone, projector
        self.backbone_terms = backbone_terms or BackboneTerms(feature_width(backbone))

    @abstractmethod
    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        """Terms of embeddings z (V, B, D), global views first, at least float32; each with its gradient."""

    @abstractmethod
    def embedding_weights(self) -> dict[str, float]:
        """Their weights."""

    @abstractmethod
    def choices(self) -> dict[str, str | float]:
        """`convention` without what it says of the backbone's terms."""

    def prepared(self, z: Tensor) -> Tensor:
        """What the terms see of the embeddings."""
        return z

    def weights(self) -> dict[str, float]:
        return {**self.embedding_weights(), **self.backbone_terms.beta}

    def convention(self) -> dict[str, str | float]:
        return {**self.choices(), **self.backbone_terms.convention()}

    def parts(self, views: Views, step: int) -> Parts:
        h = backbone_features(self.backbone, views)
        z = self.prepared(at_least_float32(self.projector(h.flatten(0, 1)).unflatten(0, h.shape[:2])))
        terms = self.embedding_terms(z, views, step)
        beside, logged = self.backbone_terms(h, len(views.global_views), step)
        return Parts(terms | beside, logged, h[0].detach(), z.detach())


def in_words(widths: tuple[int, ...] | None) -> str:
    """Widths of a projector as `convention` states them."""
    return "-".join(map(str, widths or ())) or "none"
