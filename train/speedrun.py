"""The best features that two CPU cores learn in an hour without labels. The records: train/RESULTS.md; beat them.

    python train/speedrun.py --dataset torch/cifar10 --dataset-download        the present record, about an hour
    python train/speedrun.py --phases mine.yaml --held-out                     yours, while you look for it

Rules
1. Images: the 50,000 training images of CIFAR-10. No others, and no weights to start from.
2. Labels: none in pretraining. What is logged about them (online probe, kNN) must not reach the encoder's weights.
3. Time: one hour of wall clock from this command's start to the end of its last phase, imports and decoding included,
   on two threads in all. A run that is not done by then is stopped: no record. Scoring comes after and does not count.
4. Score: `linear_probe` on frozen features of the last phase, fitted with the labels of all training images and read
   once on the 10,000 test images.
5. Choices (settings, epochs, code) are made with --held-out: the probe is fitted on the first 40,000 training images
   and scored on the last 10,000. Nothing is chosen by a test score, and no seed is left out.
6. A record names machine, commit and seeds. It counts as an improvement if its mean is above the former record's by
   more than the spread, with three seeds or more; a single seed may stand in the table if it says so.
7. Two tracks: white-box, a model of this package, and open, any backbone that timm builds.

The file of phases holds `base`, options of train/lejepa.py, and `phases`, the changes of one run after the other; each
starts from the encoder of the one before (other sizes of images and patches are interpolated). Every phase runs as two
processes of one thread, so its batch size is half of the global one. A row for the table ends the output.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import option, parse, read_yaml, run
from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.environment import commit
from aotadmm_timm.runs.flags import as_flags
from aotadmm_timm.runs.folder import write_text

_HELD_OUT = 10_000  # of the 50,000 training images


@dataclass(frozen=True)
class Config:
    phases: str = option("train/speedrun.yaml", "file of base and phases")
    dataset: str = option("torch/cifar10", "where CIFAR-10 is: a data set's name, as for training")
    data_dir: str | None = option(None, "folder of torch/ data sets")
    dataset_download: bool = option(False, "download a torch/ data set that is missing")
    held_out: bool = option(False, "score on the last fifth of the training images instead of test")
    seed: int = option(0, "seed of everything random")
    minutes: float = option(60.0, "wall clock of all phases", unit="minutes")
    output: str = option("runs/speedrun", "folder; a phase's run folder is PHASE below it")


def phase_options(cfg: Config) -> list[dict[str, Any]]:
    """Options of train/lejepa.py for each phase; every run starts from the folder of the one before."""
    search = read_yaml(cfg.phases)
    own = {"dataset": cfg.dataset, "data_dir": cfg.data_dir, "dataset_download": cfg.dataset_download, "seed": cfg.seed}
    phases: list[dict[str, Any]] = []
    for number, changes in enumerate(search["phases"], 1):
        start = {"initial_checkpoint": phases[-1]["output"]} if phases else {}
        output = {"output": str(Path(cfg.output) / str(number)), "evaluate": False}
        phases.append({**search["base"], **(changes or {}), **own, **start, **output})
    return phases


def pretrain(options: dict[str, Any], seconds: float) -> None:
    """One phase.

    Raises: UserError if it ends with an error, or is not done after these seconds.
    """
    phase = Path(options["output"]).name
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, str(Path(__file__).with_name("lejepa.py")), *as_flags(options)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            status = process.wait(timeout=max(seconds, 0))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            raise UserError(f"the time was over in phase {phase}: no record; fewer epochs would do") from None
    if status:
        raise UserError(f"phase {phase} ended with status {status}")


def score(cfg: Config, folder: Path) -> dict[str, float]:
    """Frozen features of a run on test, or on held-out training images."""
    import numpy as np  # and what takes long to import: not for --help
    import torch

    from aotadmm_timm.data import load_images
    from aotadmm_timm.evaluation.scores import model_scores
    from aotadmm_timm.evaluation.subject import load_subject

    places: dict[str, Any] = {"root": cfg.data_dir, "download": cfg.dataset_download}
    bank = load_images(cfg.dataset, "train", **places)
    if cfg.held_out:
        cut = len(bank) - min(_HELD_OUT, len(bank) // 5)
        bank, query = bank.subset(np.arange(cut)), bank.subset(np.arange(cut, len(bank)))
    else:
        query = load_images(cfg.dataset, "test", classes=bank.classes, **places)
    encoder = load_subject(str(folder), torch.device("cpu")).model
    return model_scores(bank, query, encoder, encoder)


def main() -> None:
    began = time.monotonic()
    cfg = parse(Config, description=__doc__)
    phases = phase_options(cfg)
    for options in phases:
        pretrain(options, began + 60 * cfg.minutes - time.monotonic())
    seconds, folder = time.monotonic() - began, Path(phases[-1]["output"])
    scores = score(cfg, folder)
    where = "held-out training images" if cfg.held_out else "test"
    kept = {"seconds": seconds, "commit": commit(), "seed": cfg.seed, "scored_on": where, "scores": scores}
    write_text(folder.parent / "speedrun.json", json.dumps(kept, indent=1) + "\n")
    print(f"\nscored on {where}\n| date | commit | minutes | linear % | kNN % | seed |\n|---|---|---|---|---|---|")
    accuracies = " | ".join(f"{100 * scores[key]:.2f}" for key in ("linear", "knn20"))
    print(f"| {date.today()} | {str(commit())[:7]} | {seconds / 60:.1f} | {accuracies} | {cfg.seed} |")


if __name__ == "__main__":
    run(main)
