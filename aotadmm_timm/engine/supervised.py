"""Training with labels from a configuration: what fine-tuning and distillation have beside a `Session`.

A script hands `train_supervised` two functions: one that makes the model for a number of classes, one that wraps it in
a task of `timm.task`: forward(images, targets) -> {"loss", "output", other terms}.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.data.mixup import Mixup
from timm.task.task import TrainingTask
from torch import nn

from aotadmm_timm.data import Images, hold_out, if_there, only_readable
from aotadmm_timm.data.batches import Batch
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.accuracy import accuracy
from aotadmm_timm.methods.base import Output

from .backbone import state_size
from .session import Session
from .supervised_options import SupervisedConfig
from .training_images import load_split, training_view


def criterion(cfg: SupervisedConfig) -> nn.Module:
    """Cross-entropy for labels or mixed targets; those are smoothed when they are mixed."""
    return nn.CrossEntropyLoss(label_smoothing=0.0 if cfg.mixes else cfg.smoothing)


def train_supervised(
    cfg: SupervisedConfig,
    name: str,
    make_model: Callable[[int], tuple[Any, list[str]]],
    make_task: Callable[[Any, tuple[str, ...]], TrainingTask],
    *,
    layer_decay: float | None = None,
) -> dict[str, Any]:
    """Run a whole training; returns what metrics.json holds.

    Test is read after every epoch, and the last epoch is the result: no epoch is chosen by it. Without a test set a
    tenth of train is held out instead.

    Args:
        name: of the run folder, what is trained first: finetune_..., distill_...
        make_model: number of classes -> model, names of its parameters that are new.
        make_task: model, class names -> task.
        layer_decay: see `make_optimizer`.
    """
    session = Session(cfg, name)
    train, test, where = _splits(cfg)
    classes = cfg.num_classes or len(train.classes)
    if classes < len(train.classes):
        raise UserError(f"--num-classes {classes}: {cfg.dataset} has {len(train.classes)}")

    torch.manual_seed(cfg.seed)
    model, new = make_model(classes)
    size = cfg.img_size or _own_size(model)
    state_size(model, size)
    model.pretrained_cfg |= {"num_classes": classes, "label_names": list(train.classes)}
    task = make_task(model.to(session.device).train(), train.classes).to(session.device)
    module = session.prepare(
        task, model, session.batches(train, training_view(cfg, model, size)), trained=model, exported=model,
        # the model under the name that pretraining gives it, so that all checkpoints are read alike
        holder=nn.ModuleDict({"backbone": model}), layer_decay=layer_decay,
        config={
            "method": name.partition("_")[0],
            "architecture": model.pretrained_cfg["architecture"],
            "model_args": {**model._model_args, "num_classes": classes},
        },
    )  # fmt: skip
    if session.main:
        _announce(session, size, new, layer_decay)

    def after_epoch(epoch: int, output: Output) -> dict[str, float]:
        share, _ = accuracy(session.encoder, test, num_workers=session.workers)
        if session.main:
            session.curves()
        return {"test_accuracy": share}

    session.fit(_Compute(cfg, module, classes, session.device), after_epoch=after_epoch)
    share, count = accuracy(session.encoder, test, num_workers=session.workers)
    metrics = {"accuracy": share, "evaluated_on": where, "test_images": count, **session.measures()}
    session.save(metrics)
    session.finish(metrics, f"accuracy {100 * share:.2f} % on {where} (n = {count})")
    return metrics


class _Compute:
    """A batch of one view each and its labels, mixed if asked for -> the task's loss and terms."""

    def __init__(self, cfg: SupervisedConfig, module: nn.Module, classes: int, device: torch.device) -> None:
        self.module, self.device = module, device
        mixed = cfg.mixup, cfg.cutmix
        self.mixup = Mixup(*mixed, label_smoothing=cfg.smoothing, num_classes=classes) if cfg.mixes else None

    def __call__(self, batch: Batch, step: int) -> Output:
        images, labels = batch.views[0][0], batch.labels.to(self.device)
        targets = labels
        if self.mixup is not None:
            even = len(images) // 2 * 2  # an unreadable image may have left an odd number
            images, targets = self.mixup(images[:even], labels[:even])
        terms = dict(self.module(images, targets))
        loss, output = terms.pop("loss"), terms.pop("output")
        if self.mixup is None:
            terms["train_accuracy"] = (output.detach().argmax(1) == labels).float().mean()
        return Output(loss, terms)


def _announce(session: Session, size: int, new: Sequence[str], layer_decay: float | None) -> None:
    """What is about to be trained; the parameters that no checkpoint gave; rates, if they differ by depth."""
    cfg, config = session.cfg, session.config
    print(
        f"{config['architecture']} on {cfg.dataset}: {session.images_in_words()} of {size}x{size}, "
        f"{config['model_args']['num_classes']} classes, {session.steps_in_words()}"
    )
    print(f"new parameters: {', '.join(new) or 'none, the classifier is kept'}")
    if layer_decay is not None:
        rates = sorted({round(g.get("lr_scale", 1.0), 6) for g in session.optimizer.param_groups})
        print(f"learning rates by depth: {', '.join(f'{cfg.lr * r:.3g}' for r in rates)}")


def _splits(cfg: SupervisedConfig) -> tuple[Images, Images, str]:
    train = load_split(cfg, "train")
    if (test := if_there(lambda: load_split(cfg, "test", classes=train.classes))) is not None:
        return train, only_readable(test), "test"
    train, held = hold_out(train)
    if not len(held):
        raise UserError(f"{cfg.dataset}: no test set, and too few images to hold some out")
    return train, only_readable(held), "held-out tenth of train"


def _own_size(model: Any) -> int:
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or model.pretrained_cfg["input_size"][1:]
    if size[0] != size[1]:
        raise UserError(f"the model takes images of {size[0]}x{size[1]} pixels; --img-size N makes them square")
    return int(size[0])
