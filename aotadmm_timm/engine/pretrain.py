"""Self-supervised pretraining from a configuration: what is its own beside a `Session`.

A script parses `PretrainConfig` and a method's arguments, and hands `pretrain` a function that builds the method.
"""

from collections.abc import Callable
from shlex import quote
from typing import Any

import torch
from torch import nn

from aotadmm_timm.data import Images, if_there
from aotadmm_timm.data.batches import Batch
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.scores import HeldOutProbe, final_scores
from aotadmm_timm.evaluation.summary import format_table
from aotadmm_timm.methods.base import Method, Output, Plan
from aotadmm_timm.methods.multi_view import Views, feature_width
from aotadmm_timm.pretrained import initialize

from .backbone import create_backbone
from .method_names import short_name
from .online_probe import OnlineProbe
from .pretrain_options import PretrainConfig
from .session import Session
from .training_images import load_split, multi_crop


def pretrain(cfg: PretrainConfig, name: str, build: Callable[[nn.Module], Method]) -> dict[str, Any]:
    """Run a whole pretraining; returns what metrics.json holds, on ranks other than 0 without the scores.

    Args:
        cfg: options.
        name: of the method, for the run folder.
        build: backbone -> method.
    """
    session = Session(cfg, f"{short_name(name)}_{cfg.model}")
    crop = multi_crop(cfg)
    backbone, architecture, model_args = _backbone(cfg, crop)
    if cfg.initial_checkpoint:
        initialize(backbone, cfg.initial_checkpoint, _sizes(cfg, crop)[0])
    crop = crop.replace(mean=backbone.pretrained_cfg["mean"], std=backbone.pretrained_cfg["std"])
    batches = session.batches(load_split(cfg, "train", labels=False), crop)
    train = batches.images
    # Opened now: a test set that cannot be used is no news for the end of a run. It is read there.
    unscored = _why_unscored(train)
    scored = cfg.evaluate and not unscored
    test = if_there(lambda: load_split(cfg, "test", classes=train.classes)) if scored else None

    method = build(backbone).to(session.device)
    _begin(method, Plan(session.steps, session.steps_per_epoch, cfg.batch_size, crop.num_global, crop.num_local), cfg)
    online: OnlineProbe | None = None
    if not unscored:
        online = OnlineProbe(feature_width(backbone), len(train.classes)).to(session.device)
    module = session.prepare(
        method, backbone, batches, trained=method, prefix="backbone.", exported=method.encoder,
        state={"online_probe": online} if online else {},
        config={
            "method": name, "convention": method.convention(), "architecture": architecture, "model_args": model_args
        },
    )  # fmt: skip
    if session.main:
        views = f"{crop.num_global}x{crop.global_size} + {crop.num_local}x{crop.local_size} views"
        print(f"{cfg.model} on {cfg.dataset}: {session.images_in_words()}, {views}, {session.steps_in_words()}")
        if unscored:
            print(f"{cfg.dataset}: {unscored}: probes and final scores are left out")

    def compute(batch: Batch, step: int) -> Output:
        output: Output = module(Views(batch.views[0], batch.views[1] if len(batch.views) > 1 else None), step)
        if online is None or output.features is None:
            return output
        return output._replace(terms={**output.terms, "online_probe": online(output.features, batch.labels)})

    session.fit(
        compute, weight_decay=method.weight_decay, after_backward=method.after_backward, after_step=method.after_step,
        after_epoch=_Glance(cfg, session, method, train),
    )  # fmt: skip
    metrics = {**session.measures(), "convention": method.convention()}
    session.save(metrics, model_args=model_args)
    if scored:
        untrained = _backbone(cfg, crop)[0].to(session.device)
        metrics |= final_scores(train, test, session.encoder, untrained, num_workers=session.workers)
    _report(session, metrics, not unscored)
    return metrics


def _sizes(cfg: PretrainConfig, crop: MultiCrop) -> list[int]:
    """Sides of the images that the backbone sees [pixels]; the first is the one it is made for."""
    return [cfg.img_size or crop.global_size, crop.global_size] + ([crop.local_size] if crop.num_local else [])


def _backbone(cfg: PretrainConfig, crop: MultiCrop) -> tuple[Any, str, dict[str, Any]]:
    """The untrained backbone of the run's seed, its registered name, and the arguments that build it again."""
    torch.manual_seed(cfg.seed)
    return create_backbone(
        cfg.model, _sizes(cfg, crop), model_kwargs=cfg.model_kwargs, small_image_stem=cfg.small_image_stem
    )


def _why_unscored(train: Images) -> str:
    """What keeps features from being scored; "" if nothing does."""
    if not train.has_labels:
        return "not all images have labels"
    return "" if len(train.classes) > 1 else "all images are of one class"


class _Glance:
    """After an epoch: the method's diagnostics; every few epochs an offline probe and a new curves.png."""

    def __init__(self, cfg: PretrainConfig, session: Session, method: Method, train: Images) -> None:
        self.session, self.method, self.epochs = session, method, cfg.epochs
        self.every = cfg.probe_every or max(1, round(cfg.epochs / 10))
        self.probe = (
            HeldOutProbe(train, session.encoder, num_workers=session.workers) if not _why_unscored(train) else dict
        )

    def __call__(self, epoch: int, output: Output) -> dict[str, float]:
        scores = self.method.diagnostics(output, epoch)
        if epoch % self.every == 0 or epoch == self.epochs:
            scores |= self.probe()
            if self.session.main:
                self.session.curves()
        return scores


def _report(session: Session, metrics: dict[str, Any], scorable: bool) -> None:
    rows: dict[str, Any] = {key: metrics[key] for key in ("pretrained", "untrained", "pixels") if key in metrics}
    session.finish(metrics, *([format_table(rows, metrics["evaluated_on"]), ""] if rows else []))
    if session.main and scorable:
        print(f"next: python train/evaluate.py {quote(str(session.run.path))} --dataset {quote(session.cfg.dataset)}")


def _begin(method: Method, plan: Plan, cfg: PretrainConfig) -> None:
    """Hand the method its run, or refuse a run that it cannot use."""
    name = type(method).__name__
    if plan.num_global < method.fewest_global_views:
        raise UserError(f"--num-global {plan.num_global}: {name} needs {method.fewest_global_views} global views")
    if cfg.ema and method.encoder is not method.backbone:
        raise UserError(f"--ema {cfg.ema}: {name} exports an average of its own, its teacher")
    method.begin(plan)
    if plan.steps < method.fewest_steps:
        raise UserError(f"--epochs {cfg.epochs}: {name} needs {method.fewest_steps} steps, the run has {plan.steps}")
