"""Self-supervised pretraining from a configuration: data, views, backbone, optimizer, loop, and the table at its end.

A method's script adds its own options to `PretrainConfig` and hands `pretrain` a function that builds the method.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from timm.utils.model_ema import ModelEmaV3
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aotadmm_timm import distributed
from aotadmm_timm.cli import as_dict, option
from aotadmm_timm.data import Images, if_there, load_images
from aotadmm_timm.data.batches import Batch, MemoryBatches, make_batches
from aotadmm_timm.data.multicrop import DIGITS, MultiCrop
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.expansion import expansion_diagnostics
from aotadmm_timm.evaluation.summary import format_table
from aotadmm_timm.losses.directions import unit_directions
from aotadmm_timm.methods.views import Views, feature_width
from aotadmm_timm.options import TrainConfig
from aotadmm_timm.pretrained import initialize
from aotadmm_timm.runs.curves import CurvesInTraining, draw_curves
from aotadmm_timm.runs.environment import amp_dtype, command_line, describe
from aotadmm_timm.runs.folder import images_per_second

from .backbone import average_batch_norm, compile_model, create_backbone, image_config, synchronise_batch_norm
from .loop import Loop, fit
from .online_probe import OnlineProbe
from .optimizer import make_optimizer, make_schedule
from .resume import begin, claim, open_run
from .scores import HeldOutProbe, final_scores


@dataclass(frozen=True)
class PretrainConfig(TrainConfig):
    """Options that every pretraining shares."""

    model: str = option("aot_admm_nano", "timm model name of the backbone")
    initial_checkpoint: str | None = option(
        None, "what the backbone starts from: run, model folder or name; a narrower model of its family is widened"
    )
    small_image_stem: bool = option(False, "convolutional networks: first convolution 3x3 with stride 1, no max-pool")
    views: str = option(
        "auto", "augmentation: natural images, digits (no flips, no colour), auto by data set",
        choices=("auto", "natural", "digits"),
    )  # fmt: skip
    img_size: int | None = option(
        None,
        "side of the images that the model is built for and evaluated at; --global-size if not given",
        unit="pixels",
    )
    num_global: int | None = option(None, "global views per image; by --views")
    num_local: int | None = option(None, "local views per image; by --views")
    global_size: int | None = option(None, "side of a global view; by --views", unit="pixels")
    local_size: int | None = option(None, "side of a local view; by --views", unit="pixels")
    global_scale: tuple[float, float] | None = option(None, "area range of global crops; by --views", unit="share")
    local_scale: tuple[float, float] | None = option(None, "area range of local crops; by --views", unit="share")
    probe_every: int | None = option(
        None, "epochs between offline kNN probes; about 10 in a run if not given", unit="epochs"
    )
    evaluate: bool = option(True, "end with the table of frozen-feature scores", resumable=True, repeats=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise UserError("--batch-size 1: BatchNorm and the batch statistics of the loss need at least two images")
        if self.img_size is not None and self.img_size < 1:
            raise UserError(f"--img-size must be positive, got {self.img_size}")
        if self.probe_every is not None and self.probe_every < 1:
            raise UserError(f"--probe-every must be positive, got {self.probe_every}")


# `views` and what it sets where they are not given
VIEW_OPTIONS = ("views", "num_global", "num_local", "global_size", "local_size", "global_scale", "local_scale")


def multi_crop(cfg: PretrainConfig) -> MultiCrop:
    """The views of a configuration."""
    kind = ("digits" if cfg.dataset == "digits" else "natural") if cfg.views == "auto" else cfg.views
    given = {k: getattr(cfg, k) for k in VIEW_OPTIONS[1:] if getattr(cfg, k) is not None}
    crop = (DIGITS if kind == "digits" else MultiCrop()).replace(seed=cfg.seed, **given)
    if unused := [key for key in ("local_size", "local_scale") if key in given and not crop.num_local]:
        flag = f"--{unused[0].replace('_', '-')}"
        raise UserError(f"{flag} {given[unused[0]]}: there are no local views (--num-local); {flag} none unsets it")
    return crop


def load_split(cfg: TrainConfig, split: str, classes: tuple[str, ...] | None = None, *, labels: bool = True) -> Images:
    """A split of the configured data set; `num_samples` shortens train only. See `load_images` for `labels`."""
    return load_images(
        cfg.dataset,
        split,
        root=cfg.data_dir,
        download=cfg.dataset_download,
        input_key=cfg.input_key,
        target_key=cfg.target_key,
        num_samples=cfg.num_samples if split == "train" else None,
        seed=cfg.seed,
        classes=classes,
        labels=labels,
    )


def pretrain(cfg: PretrainConfig, name: str, build: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Run a whole pretraining; returns what metrics.json holds.

    Args:
        cfg: options.
        name: of the method, for the run folder.
        build: backbone -> method (see `methods`).
    """
    device = begin(cfg)
    environment = describe(device)  # now: the commit of the code that runs, not of a later one
    main, world = distributed.is_main(), distributed.world_size()
    run = claim(cfg, f"{name}_{cfg.model}_{cfg.dataset.strip('./').replace('/', '-')}_s{cfg.seed}")
    crop = multi_crop(cfg)
    sizes = [cfg.img_size or crop.global_size, crop.global_size] + ([crop.local_size] if crop.num_local else [])

    def backbone_of_seed() -> tuple[Any, str, dict[str, Any]]:
        torch.manual_seed(cfg.seed)
        return create_backbone(cfg.model, sizes, model_kwargs=cfg.model_kwargs, small_image_stem=cfg.small_image_stem)

    backbone, architecture, model_args = backbone_of_seed()
    if cfg.initial_checkpoint:
        initialize(backbone, cfg.initial_checkpoint, sizes[0])
    crop = crop.replace(mean=backbone.pretrained_cfg["mean"], std=backbone.pretrained_cfg["std"])
    batches = make_batches(
        load_split(cfg, "train"), crop, batch_size=cfg.batch_size, seed=cfg.seed, rank=distributed.rank(), world=world,
        accumulate=cfg.accumulate, device=device, num_workers=cfg.num_workers,
    )  # fmt: skip
    train = batches.images
    # Opened now: a test set that cannot be used is no news for the end of a run. It is read there.
    test = if_there(lambda: load_split(cfg, "test", classes=train.classes)) if cfg.evaluate else None
    workers = 0 if isinstance(batches, MemoryBatches) else cfg.num_workers
    steps_per_epoch = batches.sampler.batches_per_epoch // cfg.accumulate
    steps = cfg.epochs * steps_per_epoch

    method: Any = build(backbone).to(device)
    if getattr(method, "calibrate", 0) >= steps:
        raise UserError(f"--calibrate {method.calibrate}: the run has {steps} steps only")
    optimizer = make_optimizer(cfg, method, prefix="backbone.")
    ema = ModelEmaV3(backbone, decay=cfg.ema, use_warmup=True) if cfg.ema else None
    encoder: nn.Module = ema.module if ema else backbone
    state: dict[str, Any] = {"method": method, "optimizer": optimizer, **({"ema": ema} if ema else {})}
    online: OnlineProbe | None = None
    if len(train.classes) > 1:
        state["online_probe"] = online = OnlineProbe(feature_width(backbone), len(train.classes)).to(device)

    config = {
        **as_dict(cfg),
        "method": name,
        "convention": method.convention(),
        "architecture": architecture,
        "model_args": model_args,
        "pretrained_cfg": image_config(backbone),
        "classes": list(train.classes),
        "train_images": len(train),
        "world": world,
    }
    snapshot = open_run(cfg, run, config, steps_per_epoch)
    if main:
        print(
            f"{cfg.model} on {cfg.dataset}: {len(train)} images, {crop.num_global}x{crop.global_size} + "
            f"{crop.num_local}x{crop.local_size} views, global batch {cfg.batch_size * world * cfg.accumulate}, "
            f"{cfg.epochs} epochs of {steps_per_epoch} steps"
        )
    if cfg.compile:
        compile_model(backbone, device)
    module: Any = method
    if world > 1:
        synchronise_batch_norm(backbone, device)
        module = DistributedDataParallel(method, **distributed.OWN_BUFFERS)

    latest: dict[str, torch.Tensor | None] = {"embeddings": None}

    def compute(batch: Batch, step: int) -> dict[str, torch.Tensor]:
        terms = module(Views(batch.views[0], batch.views[1] if len(batch.views) > 1 else None), step)
        features = terms.pop("features", None)
        latest["embeddings"] = terms.pop("embeddings", None)
        if online is not None and features is not None:
            terms["online_probe"] = online(features, batch.labels)
        return terms

    def after_step(done: int) -> None:
        average_batch_norm(backbone)
        if hasattr(method, "update"):
            method.update(done, steps)
        if ema:
            ema.update(backbone, step=done)

    probe_every = cfg.probe_every or max(1, round(cfg.epochs / 10))
    probe = HeldOutProbe(train, encoder, num_workers=workers)
    curves = CurvesInTraining(run.path)

    def after_epoch(epoch: int) -> dict[str, float]:
        scores: dict[str, float] = {}
        if (z := latest["embeddings"]) is not None:  # of the epoch's last batch, on this process
            directions = unit_directions(z.shape[-1], 256, cfg.seed, epoch)
            with suppress(torch.linalg.LinAlgError):  # embeddings beyond float32: the loss ends the run, not a figure
                scores = {f"expansion_{key}": value for key, value in expansion_diagnostics(z, directions).items()}
        if epoch % probe_every and epoch != cfg.epochs:
            return scores
        scores |= probe()
        if main:
            curves()
        return scores

    loop = Loop(
        compute=compute,
        batches=batches,
        parameters=[p for p in method.parameters() if p.requires_grad],
        optimizer=optimizer,
        scheduler=make_schedule(cfg, optimizer, steps_per_epoch),
        run=run,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        state=state,
        config=config,
        device=device,
        amp_dtype=amp_dtype(cfg.amp, device),
        **cfg.loop_options(),
        no_sync=module.no_sync if world > 1 else Loop.no_sync,
        after_step=after_step,
        after_epoch=after_epoch,
    )
    fit(loop, snapshot)
    metrics: dict[str, Any] = {
        "seconds": round(loop.seconds, 1),
        "images_per_second": images_per_second(run.log_path),
        "train_images": len(train),
        "convention": method.convention(),
        "command": command_line(),
        "environment": environment,
    }
    if main:
        run.save_encoder(encoder, model_args=model_args)
        run.write_metrics(metrics)  # what there is, should the scores fail
    if cfg.evaluate:
        untrained = backbone_of_seed()[0].to(device)
        metrics |= final_scores(train, test, encoder, untrained, num_workers=workers)
    if main:
        run.write_metrics(metrics)
        draw_curves(run.path)
        run.close()
        if cfg.evaluate:
            table = {k: metrics[k] for k in ("pretrained", "untrained", "pixels")}
            print("\n" + format_table(table, metrics["evaluated_on"]))
        print(f"\nrun folder: {run.path}  (open {run.path / 'curves.png'} first)")
        print(f"next: python train/evaluate.py {run.path} --dataset {cfg.dataset}")
    return metrics
