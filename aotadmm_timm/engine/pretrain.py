"""Self-supervised pretraining from a configuration: data, views, backbone, optimizer, loop, and the table at its end.

A method's script adds its own options to `PretrainConfig` and hands `pretrain` a function that builds the method.
"""

import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aotadmm_timm import distributed
from aotadmm_timm.data import LabelledImages, eval_loader, held_out_split, load_images
from aotadmm_timm.data.batches import Batch, make_batches
from aotadmm_timm.data.views import DIGITS, MultiCrop
from aotadmm_timm.evaluation import extract_features, knn_accuracy
from aotadmm_timm.evaluation.summary import format_table, frozen_scores
from aotadmm_timm.methods.views import Views

from . import checkpoint
from .backbone import create_backbone
from .config import UserError, as_dict, option
from .curves import draw_curves
from .environment import amp_dtype, describe
from .loop import Loop, fit
from .run_folder import RunFolder

logger = logging.getLogger(__name__)

# Options that do not change what a step computes: they may differ when a run is resumed.
_FREE = {
    "output",
    "resume",
    "stop_after",
    "num_workers",
    "device",
    "data_dir",
    "dataset_download",
    "save_every",
    "compile",
}


@dataclass(frozen=True)
class PretrainConfig:
    """Options that every pretraining shares."""

    model: str = option("aot_admm_nano", "timm model name of the backbone")
    model_kwargs: dict[str, Any] = option({}, "constructor arguments of the model, as key=value")
    import_: str | None = option(None, "Python file or module to import first (registers your own models)")
    dataset: str = option("digits", "digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder with train/ and val/")
    data_dir: str | None = option(None, "folder of torch/ data sets, cache of hfds/ ones")
    dataset_download: bool = option(False, "download a torch/ data set that is missing")
    input_key: str | None = option(None, "image column of an hfds/ data set; inferred if there is one")
    target_key: str | None = option(None, "label column of an hfds/ data set; inferred if there is one")
    num_samples: int | None = option(None, "use the first N training images only", unit="images")
    views: str = option(
        "auto", "augmentation: natural images, digits (no flips, no colour), auto by data set",
        choices=("auto", "natural", "digits"),
    )  # fmt: skip
    num_global: int | None = option(None, "global views per image; by --views")
    num_local: int | None = option(None, "local views per image; by --views")
    global_size: int | None = option(None, "side of a global view; by --views", unit="pixels")
    local_size: int | None = option(None, "side of a local view; by --views", unit="pixels")
    global_scale: tuple[float, float] | None = option(None, "area range of global crops; by --views", unit="share")
    local_scale: tuple[float, float] | None = option(None, "area range of local crops; by --views", unit="share")
    epochs: int = option(100, "passes over the training images")
    batch_size: int = option(128, "images per step and process")
    accumulate: int = option(1, "batches per optimizer step; the losses see one batch at a time")
    opt: str = option("adamw", "timm optimizer name")
    lr: float = option(1e-3, "peak learning rate")
    min_lr: float | None = option(None, "learning rate at the end of the cosine; a thousandth of --lr if not given")
    warmup_epochs: float | None = option(
        None, "linear warm-up; a tenth of the run, at most 10, if not given", unit="epochs"
    )
    weight_decay: float = option(0.05, "decoupled weight decay (not on norms, biases, tokens, positions, thresholds)")
    clip_grad: float | None = option(None, "clip the gradient norm to this")
    ema: float | None = option(None, "keep an exponential moving average of the encoder with this decay, and export it")
    seed: int = option(0, "seed of everything random")
    amp: str = option(
        "auto", "mixed precision: auto is bf16 where the hardware has it", choices=("auto", "off", "bf16")
    )
    compile: bool = option(False, "compile the backbone with torch.compile")
    device: str | None = option(None, "cpu, cuda, cuda:1; the GPU if there is one")
    num_workers: int = option(2, "loader processes for images that are not kept in memory")
    output: str | None = option(None, "run folder; runs/METHOD_MODEL_DATASET_sSEED if not given")
    resume: str | None = option(None, "auto, or a checkpoint or run folder to continue from")
    save_every: int = option(1, "epochs between checkpoints", unit="epochs")
    probe_every: int | None = option(None, "epochs between kNN probes; about 20 in a run if not given", unit="epochs")
    log_every: int = option(10, "steps averaged into a row of the log", unit="steps")
    stop_after: int | None = option(None, "stop after this many epochs of the schedule of --epochs", unit="epochs")
    evaluate: bool = option(True, "end with the table of frozen-feature scores")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be positive, got {getattr(self, name)}")
        if self.batch_size < 2:
            raise UserError("--batch-size 1: BatchNorm and the batch statistics of the loss need at least two images")
        if self.lr <= 0:
            raise UserError(f"--lr must be positive, got {self.lr}")
        if self.min_lr is not None and not 0 <= self.min_lr <= self.lr:
            raise UserError(f"--min-lr {self.min_lr} must lie between 0 and --lr {self.lr}: a cosine falls")
        if self.warmup_epochs is not None and not 0 <= self.warmup_epochs < self.epochs:
            raise UserError(f"--warmup-epochs {self.warmup_epochs} must be less than --epochs {self.epochs}")


def import_plugin(name: str) -> None:
    """Import a module by name, or a Python file by path. Raises UserError naming it."""
    try:
        if name.endswith(".py"):
            path = Path(name)
            if not path.is_file():
                raise UserError(f"--import {name}: no such file")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
    except ImportError as err:
        raise UserError(f"--import {name}: {err}") from None


def multi_crop(cfg: PretrainConfig) -> MultiCrop:
    """The views of a configuration."""
    kind = ("digits" if cfg.dataset == "digits" else "natural") if cfg.views == "auto" else cfg.views
    keys = ("num_global", "num_local", "global_size", "local_size", "global_scale", "local_scale")
    given = {k: getattr(cfg, k) for k in keys if getattr(cfg, k) is not None}
    return (DIGITS if kind == "digits" else MultiCrop()).replace(seed=cfg.seed, **given)


def make_optimizer(cfg: PretrainConfig, method: nn.Module, steps_per_epoch: int) -> tuple[torch.optim.Optimizer, Any]:
    """timm's optimizer and cosine schedule per update. Norms, biases and what the model names are not decayed."""
    backbone: Any = method.backbone
    exempt = {f"backbone.{name}" for name in getattr(backbone, "no_weight_decay", set)()}
    decayed, plain = [], []
    for name, p in method.named_parameters():
        if p.requires_grad:
            (plain if p.ndim <= 1 or name.endswith(".bias") or name in exempt else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": cfg.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = create_optimizer_v2(groups, opt=cfg.opt, lr=cfg.lr, weight_decay=cfg.weight_decay)
    warmup = cfg.warmup_epochs if cfg.warmup_epochs is not None else min(10.0, cfg.epochs / 10)
    scheduler, _ = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=cfg.epochs,
        min_lr=cfg.lr / 1000 if cfg.min_lr is None else cfg.min_lr,
        warmup_epochs=warmup,  # type: ignore[arg-type]
        warmup_lr=cfg.lr / 1000,
        step_on_epochs=False,
        updates_per_epoch=steps_per_epoch,
    )
    return optimizer, scheduler


def pretrain(cfg: PretrainConfig, name: str, build: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Run a whole pretraining; returns what metrics.json holds.

    Args:
        cfg: options.
        name: of the method, for the run folder.
        build: backbone -> method (see `methods`).
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    if cfg.import_:
        import_plugin(cfg.import_)
    device = distributed.init_distributed(cfg.device)
    main, world = distributed.is_main(), distributed.world_size()
    crop = multi_crop(cfg)
    sizes = [crop.global_size] + ([crop.local_size] if crop.num_local else [])

    torch.manual_seed(cfg.seed)
    backbone, model_args = create_backbone(cfg.model, sizes, model_kwargs=cfg.model_kwargs)
    crop = crop.replace(mean=backbone.pretrained_cfg["mean"], std=backbone.pretrained_cfg["std"])  # type: ignore[index, union-attr]
    train = _load(cfg, "train")
    batches = make_batches(
        train, crop, batch_size=cfg.batch_size, seed=cfg.seed, rank=distributed.rank(), world=world, device=device,
        num_workers=cfg.num_workers,
    )  # fmt: skip
    method = build(backbone).to(device)
    steps_per_epoch = batches.order.steps_per_epoch // cfg.accumulate
    if steps_per_epoch < 1:
        raise UserError(f"--accumulate {cfg.accumulate}: an epoch has only {batches.order.steps_per_epoch} batches")
    optimizer, scheduler = make_optimizer(cfg, method, steps_per_epoch)
    ema = ModelEmaV3(backbone, decay=cfg.ema, use_warmup=True) if cfg.ema else None

    config = {
        **as_dict(cfg),
        "method": name,
        "convention": convention(method),
        "model_args": model_args,
        "world": world,
    }
    folder = cfg.output or f"runs/{name}_{cfg.model}_{cfg.dataset.strip('./').replace('/', '-')}_s{cfg.seed}"
    run = RunFolder(folder, resume=cfg.resume is not None) if main else None
    distributed.barrier()
    run = run or RunFolder(folder, resume=True)
    snapshot = checkpoint.find(cfg.resume, run.path) if cfg.resume else None
    if snapshot is not None:
        _check_same(config, snapshot["config"])
    if main:
        if cfg.resume:
            print(f"resuming at step {snapshot['step']}" if snapshot else "no checkpoint yet: starting at step 0")
        run.write_config(config)
        print(
            f"{cfg.model} on {cfg.dataset}: {len(train)} images, {crop.num_global}x{crop.global_size} + "
            f"{crop.num_local}x{crop.local_size} views, global batch {cfg.batch_size * world * cfg.accumulate}, "
            f"{cfg.epochs} epochs of {steps_per_epoch} steps"
        )

    if cfg.compile:
        backbone.compile()
    module: nn.Module = DistributedDataParallel(method, broadcast_buffers=False) if world > 1 else method
    encoder = ema.module if ema else backbone

    def compute(batch: Batch, step: int) -> dict[str, torch.Tensor]:
        return module(Views(batch.views[0], batch.views[1] if len(batch.views) > 1 else None), step)

    def after_step(done: int) -> None:
        if hasattr(method, "update"):
            method.update(done, cfg.epochs * steps_per_epoch)  # type: ignore[operator]
        if ema:
            ema.update(backbone, step=done)

    probe_every = cfg.probe_every or max(1, round(cfg.epochs / 20))
    probe = _Probe(train, encoder)

    def after_epoch(epochs: int, done: int) -> dict[str, float] | None:
        if epochs % probe_every and epochs != cfg.epochs:
            return None
        scores = probe()
        if main:
            draw_curves(run.path)
        return scores

    loop = Loop(
        compute=compute,
        batches=batches,
        parameters=list(method.parameters()),
        optimizer=optimizer,
        scheduler=scheduler,
        run=run,
        steps=cfg.epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        state={"method": method, "optimizer": optimizer, **({"ema": ema} if ema else {})},
        config=config,
        device=device,
        seed=cfg.seed,
        accumulate=cfg.accumulate,
        amp_dtype=amp_dtype(cfg.amp, device),
        clip_grad=cfg.clip_grad,
        save_every=cfg.save_every,
        log_every=cfg.log_every,
        stop_after=cfg.stop_after,
        after_step=after_step,
        after_epoch=after_epoch,
    )
    began = time.time()
    rate = fit(loop, snapshot)
    metrics: dict[str, Any] = {
        "seconds": round(time.time() - began, 1),
        "images_per_second": round(rate, 1),
        "train_images": len(train),
        "convention": convention(method),
        "environment": describe(device),
    }
    if main:
        run.save_encoder(encoder, model_args=model_args)
    if cfg.evaluate:
        metrics.update(final_scores(cfg, train, encoder, model_args, sizes, device))
    if main:
        run.write_metrics(metrics)
        draw_curves(run.path)
        run.close()
        if cfg.evaluate:
            print(
                "\n"
                + format_table({k: metrics[k] for k in ("pretrained", "untrained", "pixels")}, metrics["evaluated_on"])
            )
        print(f"\nrun folder: {run.path}  (open {run.path / 'curves.png'} first)")
        print(f"next: python train/evaluate.py {run.path} --dataset {cfg.dataset}")
    return metrics


def convention(method: nn.Module) -> dict[str, Any]:
    """Which loss a method computes, in plain values."""
    return method.convention()  # type: ignore[operator, no-any-return]


def _load(cfg: PretrainConfig, split: str, classes: tuple[str, ...] | None = None) -> LabelledImages:
    return load_images(
        cfg.dataset,
        split,
        root=cfg.data_dir,
        download=cfg.dataset_download,
        input_key=cfg.input_key,
        target_key=cfg.target_key,
        num_samples=cfg.num_samples if split == "train" else None,
        classes=classes,
    )


def _check_same(config: dict[str, Any], stored: dict[str, Any]) -> None:
    differing = [k for k in config if k not in _FREE and config[k] != stored.get(k)]
    if differing:
        key = differing[0]
        raise UserError(
            f"--resume: {key} is {config[key]!r} here but {stored.get(key)!r} in the checkpoint; a resumed run "
            "keeps its configuration (--output starts another one)"
        )


class _Probe:
    """kNN accuracy on a fixed held-out tenth of train (labels held out; the images themselves are trained on)."""

    _LIMIT = 5000  # images of each part: a probe is a glance, not a result

    def __init__(self, train: LabelledImages, encoder: nn.Module) -> None:
        kept, held = held_out_split(train.labels)
        rng = np.random.default_rng(0)
        self.kept, self.held = (np.sort(rng.permutation(part)[: self._LIMIT]) for part in (kept, held))
        self.train, self.encoder = train, encoder

    def __call__(self) -> dict[str, float] | None:
        if not len(self.held):
            return None
        bank = extract_features(self.encoder, eval_loader(self.train, self.encoder, indices=self.kept))
        held = extract_features(self.encoder, eval_loader(self.train, self.encoder, indices=self.held))
        return {"probe_knn20": knn_accuracy(*bank, *held, k=20)}


def final_scores(
    cfg: PretrainConfig,
    train: LabelledImages,
    encoder: nn.Module,
    model_args: dict[str, Any],
    sizes: list[int],
    device: torch.device,
) -> dict[str, Any]:
    """Scores of the trained encoder, of the same one untrained, and of raw pixels. Test is read here, once."""
    try:
        test, where = _load(cfg, "test", classes=train.classes), "test"
        bank: np.ndarray | None = None
        query: np.ndarray | None = None
    except ValueError as err:
        bank, query = held_out_split(train.labels)
        test, where = train, "held-out tenth of train"
        logger.warning("%s; scores are on the %s", err, where)
    torch.manual_seed(cfg.seed)
    untrained = create_backbone(cfg.model, sizes, model_kwargs=cfg.model_kwargs)[0].to(device)
    scores: dict[str, Any] = {"evaluated_on": where}
    models: dict[str, nn.Module] = {"pretrained": encoder, "untrained": untrained, "pixels": nn.Flatten()}
    for key, model in models.items():
        z, y = extract_features(model, eval_loader(train, encoder, indices=bank))
        test_z, test_y = extract_features(model, eval_loader(test, encoder, indices=query))
        scores[key] = frozen_scores(z, y, test_z, test_y)
    return scores
