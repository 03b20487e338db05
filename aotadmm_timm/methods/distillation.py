"""Hard-label distillation: a teacher's best guess is a second label   (DeiT, arXiv:2012.12877, Eq. 3)."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.task.distillation import DistillationTeacher, LogitDistillationTask
from torch import Tensor, nn

from aotadmm_timm.errors import UserError


class Teacher(DistillationTeacher):
    """timm's frozen teacher, which is shown images with its own mean and std, and here also of its own size.

    Args:
        model: timm classifier; its pretrained_cfg states mean, std and input size.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.requires_grad_(False))
        config: Any = model.pretrained_cfg
        size = getattr(getattr(model, "patch_embed", None), "img_size", None) or config["input_size"][1:]
        self.size = (int(size[0]), int(size[1]))

    def train(self, mode: bool = True) -> "Teacher":
        return super().train(False)

    def normalize_input(
        self, input: Tensor, student_mean: Tensor | None = None, student_std: Tensor | None = None
    ) -> Tensor:
        """From the student's images to the teacher's; linear in the pixels, so mixed images are mixed there, too."""
        images = super().normalize_input(input, student_mean, student_std)
        if images.shape[-2:] == self.size:
            return images
        return F.interpolate(images, self.size, mode="bicubic", antialias=True)


class HardDistillation(LogitDistillationTask):
    """1/2 CE(student, label) + 1/2 CE(student, argmax teacher), both on the student's one head.

    The form of AoT-ADMM's Table 4. DeiT's own has a second head on a distillation token:
    `timm.task.TokenDistillationTask(..., distill_type="hard")`.

    Args:
        student: timm classifier in training, with its mean and std in its pretrained_cfg.
        teacher: see `Teacher`.
        criterion: of the first term; takes labels (B,) or mixed targets (B, classes).
    Raises: UserError if the numbers of classes differ, or the student has a second head for the teacher: both heads
        would learn from it.
    """

    student_mean: Tensor
    student_std: Tensor

    def __init__(self, student: nn.Module, teacher: Teacher, criterion: nn.Module) -> None:
        classes = (getattr(student, "num_classes", None), getattr(teacher.model, "num_classes", None))
        if classes[0] != classes[1]:
            raise UserError(f"the student has {classes[0]} classes, the teacher {classes[1]}")
        if hasattr(student, "set_distilled_training"):
            raise UserError(
                f"the student {type(student).__name__} has a second head for the teacher: --head token trains both as "
                "DeiT does (timm.task.TokenDistillationTask)"
            )
        super().__init__(student, teacher, criterion, verbose=False)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Images (B, C, H, W) as the student sees them -> loss, output (B, classes), and the terms."""
        logits = self.trainable_module(input)
        with torch.no_grad():
            guess = self.teacher(self.teacher.normalize_input(input, self.student_mean, self.student_std)).argmax(1)
        label_loss, teacher_loss = self.criterion(logits, target), F.cross_entropy(logits, guess)
        return {
            "loss": 0.5 * label_loss + 0.5 * teacher_loss,
            "output": logits,
            "label_loss": label_loss,
            "teacher_loss": teacher_loss,
        }
