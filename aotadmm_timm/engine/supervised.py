"""Training with labels from a configuration: what fine-tuning and distillation share.

A script hands `train_supervised` two functions: one that makes the model for a number of classes, one that wraps it in
a task of `timm.task`: forward(images, targets) -> {"loss", "output", other terms}.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timm.data.mixup import Mixup
from timm.task.task import TrainingTask
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from aotadmm_timm import distributed
from aotadmm_timm.cli import as_dict, option
from aotadmm_timm.data import Images, eval_loader, hold_out, if_there, only_readable
from aotadmm_timm.data.batches import Batch, MemoryBatches, make_batches
from aotadmm_timm.data.multicrop import DIGITS, MultiCrop
from aotadmm_timm.data.photometric import Photometric
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation import extract_features
from aotadmm_timm.options import TrainConfig
from aotadmm_timm.runs.curves import CurvesInTraining, draw_curves
from aotadmm_timm.runs.environment import amp_dtype, command_line, describe
from aotadmm_timm.runs.folder import images_per_second

from .backbone import average_batch_norm, compile_model, image_config, state_size, synchronise_batch_norm
from .loop import Loop, fit
from .optimizer import make_optimizer, make_schedule
from .pretrain import load_split
from .resume import begin, claim, open_run


@dataclass(frozen=True)
class SupervisedConfig(TrainConfig):
    """Options that trainings with labels share."""

    img_size: int | None = option(None, "side of the images; the model's own if not given", unit="pixels")
    num_classes: int | None = option(None, "outputs of the classifier; as many as the data set has if not given")
    crop_scale: tuple[float, float] = option((0.4, 1.0), "area range of random crops", unit="share")
    hflip: float | None = option(None, "probability of a mirror image; 0.5, for digits 0")
    color_jitter: float = option(0.2, "strength of brightness, contrast and saturation changes; 0 for none")
    mixup: float = option(0.0, "alpha of mixup; 0 for none")
    cutmix: float = option(0.0, "alpha of cutmix; 0 for none")
    smoothing: float = option(0.1, "label smoothing")
    drop_path: float | None = option(None, "stochastic depth rate; the one stored with the weights if not given")
    lr: float = option(5e-4, "peak learning rate")
    epochs: int = option(50, "passes over the training images")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, flag in (("img_size", "--img-size"), ("num_classes", "--num-classes")):
            if key in self.model_kwargs:
                raise UserError(f"--model-kwargs {key}={self.model_kwargs[key]}: {flag} sets it")
        if self.mixes and self.batch_size % 2:
            raise UserError(f"--batch-size {self.batch_size}: mixup and cutmix pair images, it must be even")

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def criterion(self) -> nn.Module:
        """Cross-entropy for labels or mixed targets; those are smoothed when they are mixed."""
        return nn.CrossEntropyLoss(label_smoothing=0.0 if self.mixes else self.smoothing)


def training_view(cfg: SupervisedConfig, model: Any, size: int) -> MultiCrop:
    """One random crop of `size` pixels per image, normalised for the model."""
    digits = cfg.dataset == "digits"
    jitter = (cfg.color_jitter, cfg.color_jitter, 0.0 if digits else cfg.color_jitter, 0.0)
    return (DIGITS if digits else MultiCrop()).replace(
        num_global=1,
        num_local=0,
        global_size=size,
        global_scale=cfg.crop_scale,
        hflip=(0.0 if digits else 0.5) if cfg.hflip is None else cfg.hflip,
        photometric=Photometric(jitter=jitter, gray_prob=0.0, blur_prob=0.0, solarize_prob=0.0),
        mean=model.pretrained_cfg["mean"],
        std=model.pretrained_cfg["std"],
        seed=cfg.seed,
    )


class _Logits(nn.Module):
    """A classifier whose features are its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def accuracy(model: nn.Module, images: Images, *, num_workers: int = 0) -> tuple[float, int]:
    """Share of images classified rightly, and their number; exact over ranks, nothing is padded."""
    logits, labels = extract_features(_Logits(model), eval_loader(images, model, num_workers=num_workers))
    return (logits.argmax(1) == labels).double().mean().item(), len(labels)


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
        name: of the run folder.
        make_model: number of classes -> model, names of its parameters that are new (None: all of them are).
        make_task: model, class names -> task.
        layer_decay: see `make_optimizer`.
    """
    device = begin(cfg)
    environment = describe(device)  # now: the commit of the code that runs, not of a later one
    main, world = distributed.is_main(), distributed.world_size()
    run = claim(cfg, name)
    train, test, where = _splits(cfg)
    classes = cfg.num_classes or len(train.classes)
    if classes < len(train.classes):
        raise UserError(f"--num-classes {classes}: {cfg.dataset} has {len(train.classes)}")

    torch.manual_seed(cfg.seed)
    model, new = make_model(classes)
    size = cfg.img_size or _own_size(model)
    state_size(model, size)
    model.pretrained_cfg |= {"num_classes": classes, "label_names": list(train.classes)}
    task = make_task(model.to(device).train(), train.classes).to(device)
    batches = make_batches(
        train, training_view(cfg, model, size), batch_size=cfg.batch_size, seed=cfg.seed, rank=distributed.rank(),
        world=world, accumulate=cfg.accumulate, device=device, num_workers=cfg.num_workers,
    )  # fmt: skip
    workers = 0 if isinstance(batches, MemoryBatches) else cfg.num_workers
    steps_per_epoch = batches.sampler.batches_per_epoch // cfg.accumulate
    optimizer = make_optimizer(cfg, model, layer_decay=layer_decay)
    ema = ModelEmaV3(model, decay=cfg.ema, use_warmup=True) if cfg.ema else None
    result: nn.Module = ema.module if ema else model
    mixup = Mixup(cfg.mixup, cfg.cutmix, label_smoothing=cfg.smoothing, num_classes=classes) if cfg.mixes else None

    config = {
        **as_dict(cfg),
        "method": name.partition("_")[0],
        "architecture": model.pretrained_cfg["architecture"],
        "model_args": {**model._model_args, "num_classes": classes},
        "pretrained_cfg": image_config(model),
        "classes": list(train.classes),
        "train_images": len(batches.images),
        "world": world,
    }
    snapshot = open_run(cfg, run, config, steps_per_epoch)
    if main:
        rates = sorted({round(g.get("lr_scale", 1.0), 6) for g in optimizer.param_groups})
        print(
            f"{config['architecture']} on {cfg.dataset}: {len(batches.images)} images of {size}x{size}, "
            f"{classes} classes, global batch {cfg.batch_size * world * cfg.accumulate}, {cfg.epochs} epochs of "
            f"{steps_per_epoch} steps\nnew parameters: {', '.join(new) or 'none, the classifier is kept'}"
        )
        if layer_decay is not None:
            print(f"learning rates by depth: {', '.join(f'{cfg.lr * r:.3g}' for r in rates)}")
    if world > 1:
        synchronise_batch_norm(model, device)
        task.prepare_distributed(**distributed.OWN_BUFFERS)
    if cfg.compile:
        compile_model(model, device)

    def compute(batch: Batch, step: int) -> dict[str, Tensor]:
        images, labels = batch.views[0][0], batch.labels.to(device)
        targets = labels
        if mixup is not None:
            even = len(images) // 2 * 2  # an unreadable image may have left an odd number
            images, targets = mixup(images[:even], labels[:even])
        terms = task(images, targets)
        output = terms.pop("output")
        if mixup is None:
            terms["train_accuracy"] = (output.detach().argmax(1) == labels).float().mean()
        return terms

    def after_step(done: int) -> None:
        average_batch_norm(model)
        if ema:
            ema.update(model, step=done)

    curves = CurvesInTraining(run.path)

    def after_epoch(epoch: int) -> dict[str, float]:
        share, _ = accuracy(result, test, num_workers=workers)
        if main:
            curves()
        return {"test_accuracy": share}

    loop = Loop(
        compute=compute,
        batches=batches,
        parameters=list(model.parameters()),
        optimizer=optimizer,
        scheduler=make_schedule(cfg, optimizer, steps_per_epoch),
        run=run,
        steps=cfg.epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        # the model under the name that pretraining gives it, so that all checkpoints are read alike
        state={
            "method": nn.ModuleDict({"backbone": model}),
            "optimizer": optimizer,
            **({"ema": ema} if ema else {}),
        },
        config=config,
        device=device,
        amp_dtype=amp_dtype(cfg.amp, device),
        **cfg.loop_options(),
        no_sync=task.no_sync if world > 1 else Loop.no_sync,
        after_step=after_step,
        after_epoch=after_epoch,
    )
    fit(loop, snapshot)
    share, count = accuracy(result, test, num_workers=workers)
    metrics = {
        "accuracy": share,
        "evaluated_on": where,
        "test_images": count,
        "train_images": len(batches.images),
        "seconds": round(loop.seconds, 1),
        "images_per_second": images_per_second(run.log_path),
        "command": command_line(),
        "environment": environment,
    }
    if main:
        run.save_encoder(result)
        run.write_metrics(metrics)
        draw_curves(run.path)
        run.close()
        print(f"\naccuracy {100 * share:.2f} % on {where} (n = {count})")
        print(f"run folder: {run.path}  (open {run.path / 'curves.png'} first)")
    return metrics


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
