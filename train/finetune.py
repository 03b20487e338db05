"""Fine-tuning of pretrained weights on labelled images: every layer is trained, only the classifier is new.

    python train/finetune.py --checkpoint runs/lejepa_aot_admm_nano_digits_s0           digits, a minute on two cores
    python train/finetune.py --checkpoint FILE --model aot_admm_tiny --dataset torch/cifar10 --img-size 64
    python train/finetune.py --config train/recipes/table2_finetune.yaml --checkpoint RUN      Table 2's second half

Weights come from a run folder, a folder in timm's format, hf-hub:ORG/NAME, a timm name, a file or a training
checkpoint; positions are resampled to another image size. With --model another architecture takes over the weights
that it has a place for: vit_tiny_mlpfree those of a ViT, all but the MLPs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.engine.supervised_options import SupervisedConfig
from aotadmm_timm.errors import UserError


@dataclass(frozen=True)
class Config(SupervisedConfig):
    checkpoint: str | None = option(None, "weights: run, model folder, hf-hub:ORG/NAME, timm name or file")
    model: str | None = option(
        None, "timm name, for a lone --checkpoint file, or to start another architecture from the weights"
    )
    layer_decay: float = option(0.75, "factor on the learning rate from each layer to the one before it; 1 for none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"--layer-decay {self.layer_decay} must be above 0 and at most 1")


def main() -> None:
    cfg = parse(Config, description=__doc__)
    source = cfg.checkpoint
    if source is None:
        raise UserError("--checkpoint: which weights should be fine-tuned?")

    from timm.task.classification import ClassificationTask  # torch and timm: not for --help

    from aotadmm_timm.engine.supervised import criterion, train_supervised
    from aotadmm_timm.pretrained import adapt, open_or_start

    def make_model(num_classes: int) -> tuple[Any, list[str]]:
        kwargs = {**cfg.model_kwargs, **({} if cfg.drop_path is None else {"drop_path_rate": cfg.drop_path})}
        model = open_or_start(source, model=cfg.model, img_size=cfg.img_size, model_kwargs=kwargs)
        return model, adapt(model, num_classes=num_classes, img_size=cfg.img_size)

    origin = Path(source).resolve().name if Path(source).exists() else source.rpartition("/")[2]
    train_supervised(
        cfg,
        f"finetune_{origin}",
        make_model,
        lambda model, classes: ClassificationTask(model, criterion(cfg), verbose=False),
        layer_decay=cfg.layer_decay if cfg.layer_decay < 1 else None,
    )


if __name__ == "__main__":
    run(main)
