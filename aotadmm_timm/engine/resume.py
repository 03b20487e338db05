"""Opening a run folder: a new run, or the continuation of the one it holds."""

import logging
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm import distributed
from aotadmm_timm.cli import keys, read_yaml
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import Derived, TrainConfig
from aotadmm_timm.plugin import import_plugin
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.folder import RunFolder
from aotadmm_timm.runs.trackers import WeightsAndBiases


def begin(cfg: TrainConfig) -> torch.device:
    """Join the other processes, import the user's code; returns this process's device. Only rank 0 warns."""
    device = distributed.init_distributed(cfg.device)
    level = logging.WARNING if distributed.is_main() else logging.ERROR
    logging.basicConfig(format="%(message)s", level=level)
    if cfg.import_:
        import_plugin(cfg.import_)
    return device


def claim(cfg: TrainConfig, name: str) -> RunFolder:
    """The folder of a run, refused before any work is done if it holds another one.

    Without --output it is the run that --resume names, else `runs/{name}`.
    """
    # Only one rank looks: it may have written before another one gets here.
    folder = cfg.output or _resumed(cfg.resume) or f"runs/{name}"
    return RunFolder(folder, resume=cfg.resume is not None or not distributed.is_main())


def open_run(cfg: TrainConfig, run: RunFolder, config: dict[str, Any], steps_per_epoch: int) -> dict[str, Any] | None:
    """Write the configuration and return the checkpoint to continue from; None at the start.

    Results of an earlier end of the run are removed if there are steps to do: they would be taken for those of its end.

    Raises: UserError if --resume finds only damaged checkpoints, another configuration (in the checkpoint, or of the
        run in the output folder), not the same on all ranks, or more steps than --stop-after.
    """
    main = distributed.is_main()
    distributed.barrier()
    snapshot = checkpoints.find(cfg.resume, run.path, repair=main) if cfg.resume else None
    steps = distributed.all_gather_objects(snapshot and snapshot["step"])
    if len(set(steps)) > 1:
        raise UserError(f"--resume: ranks see checkpoints of steps {steps}; all need the same run folder")
    if snapshot is not None:
        _check_same(cfg, config, snapshot["config"], "the checkpoint")
        last = steps_per_epoch * min(cfg.epochs, cfg.stop_after or cfg.epochs)
        if snapshot["step"] > last:
            raise UserError(
                f"--stop-after {cfg.stop_after}: the checkpoint has {snapshot['step']} steps already, epoch "
                f"{cfg.stop_after} ended at {last}"
            )
    if main and cfg.resume not in (None, "auto") and (run.path / "config.yaml").is_file():
        _check_same(cfg, config, read_yaml(run.path / "config.yaml"), f"the run in {run.path}")
    if main:
        if cfg.resume:
            print(f"resuming at step {snapshot['step']}" if snapshot else "no checkpoint yet: starting at step 0")
        if cfg.wandb:
            run.trackers.append(WeightsAndBiases(cfg.wandb, run.path, config))
        if snapshot is None or snapshot["step"] < last:
            run.remove_results()
        run.write_config(config)
    return snapshot


def _resumed(resume: str | None) -> Path | None:
    """The run folder that --resume names: itself, or the one whose checkpoints/ the file lies in."""
    if resume in (None, "auto"):
        return None
    path = Path(resume)
    if path.is_file():
        return path.parent.parent if path.parent.name == "checkpoints" else None
    return path


def _check_same(cfg: TrainConfig, config: dict[str, Any], stored: dict[str, Any], where: str) -> None:
    free = keys(type(cfg), "resumable") | keys(Derived, "resumable")
    for key, value in config.items():
        if key in free or (key == "train_images" and key not in stored):
            continue
        if value != stored.get(key):
            raise UserError(
                f"--resume: {key} is {value!r} here but {stored.get(key)!r} in {where}; a resumed run keeps its "
                "configuration (--output starts another one)"
            )
