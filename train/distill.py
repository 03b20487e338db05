"""Hard-label distillation: the student learns the labels and the teacher's best guesses, half and half.

    python train/distill.py --model vit_tiny_mlpfree --teacher RUN --init teacher --dataset torch/cifar10
    python train/distill.py --config train/recipes/table4_distill.yaml --teacher RUN --dataset torch/cifar10

Teacher and starting weights come from a run folder, a folder in timm's format, hf-hub:ORG/NAME, a timm name or a file.
A student without MLPs starts from a ViT's other weights.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.engine.supervised_options import SupervisedConfig
from aotadmm_timm.errors import UserError


@dataclass(frozen=True)
class Config(SupervisedConfig):
    model: str = option("vit_tiny_mlpfree", "timm name of the student")
    teacher: str | None = option(None, "classifier to learn from: run, folder, hf-hub:ORG/NAME, timm name or file")
    teacher_model: str | None = option(None, "timm name, for a --teacher file outside a run or model folder")
    init: str | None = option(None, "weights the student starts from: `teacher`, or as --teacher; random if not given")
    head: str = option(
        "single", "single: both losses on one head; token: DeiT's distillation token", choices=("single", "token")
    )


def main() -> None:
    cfg = parse(Config, description=__doc__)
    source = cfg.teacher
    if source is None:
        raise UserError("--teacher: which classifier should be learned from?")

    from timm.task.token_distillation import TokenDistillationTask  # torch and timm: not for --help

    from aotadmm_timm.engine.supervised import criterion, train_supervised
    from aotadmm_timm.methods.distillation import HardDistillation, Teacher
    from aotadmm_timm.pretrained import adapt, build_model, check_name, open_model, start_from

    @functools.cache
    def teacher() -> Any:
        return open_model(source, model=cfg.teacher_model)[0]

    def make_model(num_classes: int) -> tuple[Any, list[str]]:
        check_name(cfg.model)
        kwargs = {**cfg.model_kwargs, **({} if cfg.drop_path is None else {"drop_path_rate": cfg.drop_path})}
        size: dict[str, Any] = {"img_size": cfg.img_size} if cfg.img_size else {}
        if cfg.init is None:
            model, _ = build_model(cfg.model, [size, {}], num_classes=num_classes, **kwargs)
            return model, [name for name, _ in model.named_parameters()]
        start: Any
        if cfg.init == "teacher":
            start = teacher()
        else:  # a lone file does not say what it is of; a folder does, and may be of another model than the teacher
            start, _ = open_model(cfg.init, model=cfg.teacher_model if Path(cfg.init).is_file() else None)
        student: Any = start_from(start, cfg.model, num_classes=start.num_classes, **size, **kwargs)
        return student, adapt(student, num_classes=num_classes, img_size=cfg.img_size)

    def make_task(student: Any, classes: tuple[str, ...]) -> Any:
        if teacher().num_classes != student.num_classes:
            raise UserError(f"--teacher {source}: {teacher().num_classes} classes, the data has {len(classes)}")
        names = teacher().pretrained_cfg.get("label_names")
        if names and tuple(names) != classes:
            raise UserError(f"--teacher {source}: its classes are {', '.join(names[:5])}..., not the data's")
        if cfg.head == "single":
            return HardDistillation(student, Teacher(teacher()), criterion(cfg))
        if not hasattr(student, "set_distilled_training"):
            raise UserError(f"--head token: {cfg.model} has no distillation token (set_distilled_training)")
        return TokenDistillationTask(
            student, Teacher(teacher()), criterion(cfg), distill_type="hard", task_loss_weight=0.5, verbose=False
        )

    train_supervised(cfg, f"distill_{cfg.model}", make_model, make_task)


if __name__ == "__main__":
    run(main)
