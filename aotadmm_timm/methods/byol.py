"""BYOL: a predictor on one view meets a momentum teacher on another, without negatives."""

from torch import Tensor, nn
from torch.nn import functional as F

from aotadmm_timm.distributed import mean_over_batch
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

from .backbone_terms import BackboneTerms
from .base import Terms
from .joint_embedding import JointEmbedding, in_words
from .multi_view import Views, backbone_features, feature_width
from .projector import Projector
from .teacher import MomentumTeacher, cosine_momentum
from .view_pairs import mean_over_other_views


class BYOL(JointEmbedding):
    """2 - 2 cos(predictor(z_v), z'_g), z' by the teacher; the mean over views v and global views g != v

    (BYOL, arXiv:2006.07733, Eq. 2). The teacher's momentum rises from `momentum` to 1 along a cosine.

    Args:
        backbone: timm model with num_classes=0.
        momentum: of the teacher at the start; the paper has 0.996, for 1,000 epochs of batches of 4,096.
        projector: widths of its hidden layers, then the embedding's.
        predictor: widths of its hidden layers; none to leave it out: embeddings then collapse (the paper's Table 5).
        backbone_terms: regularizers of the backbone's features beside the loss.
    """

    fewest_global_views = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        momentum: float = 0.996,
        projector: tuple[int, ...] = (4096, 256),
        predictor: tuple[int, ...] | None = (4096,),
        backbone_terms: BackboneTerms | None = None,
    ) -> None:
        if not 0 <= momentum <= 1:
            raise UserError(f"momentum must lie between 0 and 1, got {momentum}")
        super().__init__(backbone, Projector(feature_width(backbone), *projector), backbone_terms)
        width = projector[-1]
        self.predictor = Projector(width, *predictor, width) if predictor else nn.Identity()
        self.teacher = MomentumTeacher(nn.Sequential(self.backbone, self.projector), batch_statistics=True)
        self.momentum, self.projector_dims, self.predictor_dims = momentum, projector, predictor

    def choices(self) -> dict[str, str | float]:
        return {
            "method": "BYOL",
            "momentum": f"{self.momentum:g} to 1, cosine",
            "projector": in_words(self.projector_dims),
            "predictor": in_words((*self.predictor_dims, self.projector_dims[-1]) if self.predictor_dims else None),
        }

    def embedding_weights(self) -> dict[str, float]:
        return {"distance": 1.0}

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        guess = F.normalize(at_least_float32(self.predictor(z.flatten(0, 1)).unflatten(0, z.shape[:2])), dim=-1)
        target = at_least_float32(backbone_features(self.teacher, Views(views.global_views)))
        target = F.normalize(target, dim=-1)
        return {
            "distance": mean_over_other_views(lambda p, t: mean_over_batch((p - t).square().sum(-1)), guess, target)
        }

    def after_step(self, done: int) -> None:
        online = nn.Sequential(self.backbone, self.projector)
        self.teacher.update(online, cosine_momentum(done, self.plan.steps, self.momentum))
