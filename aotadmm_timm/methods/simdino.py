"""SimDINO: DINO without prototypes, temperatures and center: the rate of coding keeps embeddings apart."""

import torch
from torch import Tensor, nn

from aotadmm_timm.distributed import all_reduce_sum, mean_over_batch, total_count
from aotadmm_timm.errors import UserError
from aotadmm_timm.precision import at_least_float32

from .backbone_terms import BackboneTerms
from .base import Terms
from .dino_head import DINOHead
from .joint_embedding import JointEmbedding, in_words
from .multi_view import Views, backbone_features, feature_width
from .teacher import MomentumTeacher, cosine_momentum
from .view_pairs import mean_over_other_views


def embedding_rate(z: Tensor, *, eps: float) -> Tensor:
    """1/2 logdet(I + D / (N eps) Z^T Z) of normalized embeddings z (N, D), not centered; N over all ranks."""
    count, width = total_count(len(z), z.device), z.shape[-1]
    gram = all_reduce_sum(z.mT @ z)
    eye = torch.eye(width, device=z.device, dtype=z.dtype)
    return torch.linalg.cholesky(eye + width / (count * eps) * gram).diagonal().log().sum()


class SimDINO(JointEmbedding):
    """agreement (1 - cos(s_v, t_g)) - gamma R(s)   (SimDINO, arXiv:2502.10385)

    s normalized embeddings of the student, t of a momentum teacher; the cosine is the mean over views v and global
    views g != v, R (`embedding_rate`) the mean over the global views of the student. The teacher is evaluated and
    exported.

    Args:
        backbone: timm model with num_classes=0.
        agreement: weight of the agreement with the teacher.
        gamma: weight of the rate of coding; the released code's 1/D + 1/N if not given, N over all ranks.
        eps: precision of the coding; it stands as in the released code, not squared.
        projector: widths of the head's hidden layers, then the normalized embedding's.
        momentum: of the teacher at the start; it rises to 1 along a cosine.
        backbone_terms: regularizers of the backbone's features beside the loss.
    """

    fewest_global_views = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        agreement: float = 1.0,
        gamma: float | None = None,
        eps: float = 0.5,
        projector: tuple[int, ...] = (2048, 2048, 256),
        momentum: float = 0.996,
        backbone_terms: BackboneTerms | None = None,
    ) -> None:
        if eps <= 0:
            raise UserError(f"eps must be positive, got {eps}")
        super().__init__(backbone, DINOHead(feature_width(backbone), projector, None), backbone_terms)
        self.teacher = MomentumTeacher(nn.Sequential(self.backbone, self.projector))
        self.agreement, self.gamma, self.eps = agreement, gamma, eps
        self.momentum, self.projector_dims = momentum, projector

    @property
    def encoder(self) -> nn.Module:
        backbone, _ = self.teacher.module.children()
        return backbone

    def choices(self) -> dict[str, str | float]:
        return {
            "method": "SimDINO",
            "agreement": self.agreement,
            "gamma": "1/D + 1/N" if self.gamma is None else self.gamma,
            "eps": self.eps,
            "projector": in_words(self.projector_dims),
            "momentum": f"{self.momentum:g} to 1, cosine",
        }

    def embedding_weights(self) -> dict[str, float]:
        return {"distance": self.agreement, "rate": -1.0}

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        teacher = at_least_float32(backbone_features(self.teacher, Views(views.global_views)))
        with torch.autocast(z.device.type, enabled=False):
            rates = [embedding_rate(view, eps=self.eps) for view in z[: len(teacher)]]
            gamma = self.gamma
            if gamma is None:
                gamma = 1 / z.shape[-1] + 1 / total_count(z.shape[1], z.device)
            return {
                "distance": mean_over_other_views(lambda s, t: mean_over_batch(1 - (s * t).sum(-1)), z, teacher),
                "rate": gamma * torch.stack(rates).mean(),
            }

    def after_step(self, done: int) -> None:
        online = nn.Sequential(self.backbone, self.projector)
        self.teacher.update(online, cosine_momentum(done, self.plan.steps, self.momentum))
