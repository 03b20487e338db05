"""Opening a run folder: a new run, or the continuation of the one it holds."""

import logging
from typing import Any

import torch

from aotadmm_timm import distributed

from . import checkpoint
from .config import UserError
from .options import FREE, TrainConfig
from .plugin import import_plugin
from .run_folder import RunFolder
from .trackers import WeightsAndBiases

# What follows from the options, or may change in the course of a run.
_DERIVED = {"convention", "model_args", "architecture"}


def begin(cfg: TrainConfig) -> torch.device:
    """Join the other processes, import the user's code; returns this process's device. Only rank 0 warns."""
    device = distributed.init_distributed(cfg.device)
    level = logging.WARNING if distributed.is_main() else logging.ERROR
    logging.basicConfig(format="%(message)s", level=level)
    if cfg.import_:
        import_plugin(cfg.import_)
    return device


def claim(cfg: TrainConfig, name: str) -> RunFolder:
    """The folder of a run, refused before any work is done if it holds another one; `name` if --output is not given."""
    # Only one rank looks: it may have written before another one gets here.
    return RunFolder(cfg.output or f"runs/{name}", resume=cfg.resume is not None or not distributed.is_main())


def open_run(cfg: TrainConfig, run: RunFolder, config: dict[str, Any]) -> dict[str, Any] | None:
    """Write the configuration and return the checkpoint to continue from; None at the start.

    Raises: UserError if --resume finds only damaged checkpoints, another configuration, or not the same on all ranks.
    """
    main = distributed.is_main()
    distributed.barrier()
    snapshot = checkpoint.find(cfg.resume, run.path, repair=main) if cfg.resume else None
    steps = distributed.all_gather_objects(snapshot and snapshot["step"])
    if len(set(steps)) > 1:
        raise UserError(f"--resume: ranks see checkpoints of steps {steps}; all need the same run folder")
    if snapshot is not None:
        _check_same(config, snapshot["config"])
    if main:
        if cfg.resume:
            print(f"resuming at step {snapshot['step']}" if snapshot else "no checkpoint yet: starting at step 0")
        if cfg.wandb:
            run.trackers.append(WeightsAndBiases(cfg.wandb, run.path, config))
        run.write_config(config)
    return snapshot


def _check_same(config: dict[str, Any], stored: dict[str, Any]) -> None:
    for key, value in config.items():
        if key not in FREE | _DERIVED and value != stored.get(key):
            raise UserError(
                f"--resume: {key} is {value!r} here but {stored.get(key)!r} in the checkpoint; a resumed run keeps "
                "its configuration (--output starts another one)"
            )
