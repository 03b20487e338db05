"""DINO: a student matches a momentum teacher's soft assignment of another view to prototypes."""

import math

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


class DINO(JointEmbedding):
    """-softmax((t_g - c) / T_t) . log softmax(s_v / T_s), the mean over views v and global views g != v

    (DINO, arXiv:2104.14294, Eqs. 1 to 4). The center c follows the teacher's mean output over all ranks, so that no
    prototype dominates; the teacher's lower temperature keeps its output from becoming uniform. The teacher is what is
    evaluated and exported. Clip gradients to norm 3 as the paper does: --clip-grad 3.

    Args:
        backbone: timm model with num_classes=0.
        prototypes: outputs of the head; 65,536 in the paper, for ImageNet.
        projector: widths of the head's hidden layers, then of the normalized embedding before the prototypes.
        momentum: of the teacher at the start; it rises to 1 along a cosine.
        student_temperature: T_s.
        teacher_temperature: T_t after the warm-up.
        teacher_temperature_start: T_t at the start; it rises linearly.
        teacher_warmup: length of that rise, as a share of the run; 30 of 100 epochs in the paper.
        center_momentum: of the center.
        weight_decay_end: weight decay at the end of a cosine that starts at --weight-decay; none to keep it.
        freeze_last_layer: epochs in which the prototypes are not trained [epochs].
        backbone_terms: regularizers of the backbone's features beside the loss.
    """

    center: Tensor
    fewest_global_views = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        prototypes: int = 4096,
        projector: tuple[int, ...] = (2048, 2048, 256),
        momentum: float = 0.996,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.07,
        teacher_temperature_start: float = 0.04,
        teacher_warmup: float = 0.3,
        center_momentum: float = 0.9,
        weight_decay_end: float | None = 0.4,
        freeze_last_layer: int = 1,
        backbone_terms: BackboneTerms | None = None,
    ) -> None:
        if min(student_temperature, teacher_temperature, teacher_temperature_start) <= 0:
            raise UserError("temperatures must be positive")
        super().__init__(backbone, DINOHead(feature_width(backbone), projector, prototypes), backbone_terms)
        self.teacher = MomentumTeacher(nn.Sequential(self.backbone, self.projector))
        self.register_buffer("center", torch.zeros(prototypes))
        self.projector_dims, self.momentum, self.center_momentum = projector, momentum, center_momentum
        self.student_temperature, self.teacher_warmup = student_temperature, teacher_warmup
        self.teacher_temperatures = (teacher_temperature_start, teacher_temperature)
        self.weight_decay_end, self.freeze_last_layer = weight_decay_end, freeze_last_layer

    @property
    def encoder(self) -> nn.Module:
        backbone, _ = self.teacher.module.children()
        return backbone

    def choices(self) -> dict[str, str | float]:
        start, end = self.teacher_temperatures
        return {
            "method": "DINO",
            "projector": in_words(self.projector_dims),
            "prototypes": len(self.center),
            "momentum": f"{self.momentum:g} to 1, cosine",
            "temperatures": f"student {self.student_temperature:g}, teacher {start:g} to {end:g} "
            f"in {self.teacher_warmup:g} of the run",
            "center momentum": self.center_momentum,
            "last layer frozen": f"{self.freeze_last_layer} epochs",
            "weight decay at the end": "as at the start" if self.weight_decay_end is None else self.weight_decay_end,
        }

    def embedding_weights(self) -> dict[str, float]:
        return {"cross_entropy": 1.0}

    def teacher_temperature(self, step: int) -> float:
        """T_t of a step; the final one before `begin`."""
        start, end = self.teacher_temperatures
        rise = self.teacher_warmup * self.plan.steps
        return start + (end - start) * min(1.0, step / rise) if rise > 0 else end

    def embedding_terms(self, z: Tensor, views: Views, step: int) -> Terms:
        student = (z / self.student_temperature).log_softmax(-1)
        output = at_least_float32(backbone_features(self.teacher, Views(views.global_views)))
        teacher = ((output - self.center) / self.teacher_temperature(step)).softmax(-1)
        loss = mean_over_other_views(lambda s, t: mean_over_batch(-(t * s).sum(-1)), student, teacher)
        if self.training:
            rows = len(output) * total_count(output.shape[1], output.device)
            self.center.lerp_(all_reduce_sum(output.sum((0, 1))) / rows, 1 - self.center_momentum)
        return {"cross_entropy": loss}

    def weight_decay(self, step: int, base: float) -> float:
        if self.weight_decay_end is None:
            return base
        share = (1 + math.cos(math.pi * step / self.plan.steps)) / 2
        return self.weight_decay_end + (base - self.weight_decay_end) * share

    def after_backward(self, step: int) -> None:
        if step < self.freeze_last_layer * self.plan.steps_per_epoch:
            assert isinstance(self.projector, DINOHead)
            assert self.projector.prototypes is not None
            self.projector.prototypes.grad = None

    def after_step(self, done: int) -> None:
        online = nn.Sequential(self.backbone, self.projector)
        self.teacher.update(online, cosine_momentum(done, self.plan.steps, self.momentum))
