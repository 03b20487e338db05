"""Trials of a recipe, one after the other; every trial is a record, also one that failed.

    python train/search.py                                     what train/search.yaml asks for and has no record yet
    python train/search.py --only muon_4e-2 views_4 --seed 1   these, with another seed
    python train/search.py --results train/RESULTS.md          table and figure of the records anew

The file of trials names a `base`, options of train/lejepa.py, and `trials`: a name, what it changes, and its `cost`:
the CPU time of the run's steps over that of the reference's (tests/benchmarks/recipe_step.py), so that settings are
compared at equal time. Trials are scored on the data set's test split: give one that was cut off the training images.
A run that was stopped continues where it was; the file of records says what is done.
"""

import contextlib
import dataclasses
import io
import json
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import option, parse, read_yaml, run
from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.comparison import as_markdown
from aotadmm_timm.runs.environment import commit
from aotadmm_timm.runs.flags import as_flags
from aotadmm_timm.runs.folder import write_text
from aotadmm_timm.runs.places import placeless_command
from aotadmm_timm.runs.trials import Trial, draw_path, read_trials, trial_rows, write_trials

_TABLE = re.compile(r"(<!-- search -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Config:
    trials: str = option("train/search.yaml", "file of base and trials")
    only: tuple[str, ...] = option((), "names of the trials to run; all if not given")
    seed: int = option(0, "seed of the trials")
    output: str = option("runs/search", "folder of the run folders")
    records: str = option("train/results/search.jsonl", "file of records; the figure lies beside it")
    results: str | None = option(None, "Markdown file whose table is made anew; nothing is trained")


def attempt(trial: Trial, base: dict[str, Any], folder: Path) -> Trial:
    """Train and score one trial; what ends in an error of the user's leaves a record of its message."""
    words = as_flags({**base, **trial.options, "seed": trial.seed, "evaluate": False})
    command = placeless_command(shlex.join(["python", "train/lejepa.py", *words]))
    trial = dataclasses.replace(trial, command=command, commit=commit())
    metrics = folder / "metrics.json"
    if not metrics.is_file():
        message = train([*words, "--output", str(folder), "--resume", "auto"])
        if message is not None:
            return dataclasses.replace(trial, failed=message)
    made_by = json.loads(metrics.read_text(encoding="utf-8"))["environment"]["commit"]
    return dataclasses.replace(trial, commit=made_by, scores=scores(folder))


def train(words: list[str]) -> str | None:
    """Run train/lejepa.py in this process; its message if it ended with one. A signal ends the search, too."""
    before, errors = sys.argv, io.StringIO()
    sys.argv = ["lejepa.py", *words]
    try:
        with contextlib.redirect_stderr(errors):
            runpy.run_path(str(Path(__file__).with_name("lejepa.py")), run_name="__main__")
    except SystemExit as end:
        if end.code != 2:
            raise
        return errors.getvalue().strip().splitlines()[-1]
    finally:
        sys.argv = before
    return None


def scores(folder: Path) -> dict[str, float]:
    """Scores of the run's encoder on what its data set calls test, to six digits."""
    import torch  # and what needs it: not for --help

    from aotadmm_timm.data import load_images
    from aotadmm_timm.evaluation.scores import model_scores
    from aotadmm_timm.evaluation.subject import load_subject

    subject = load_subject(str(folder), torch.device("cpu"))
    name, drawn = subject.config["dataset"], {key: subject.config[key] for key in ("num_samples", "seed")}
    bank = load_images(name, "train", **drawn)
    query = load_images(name, "test", classes=bank.classes)
    return {k: float(f"{v:.6g}") for k, v in model_scores(bank, query, subject.model, subject.model).items()}


def regenerate(records: Path, results: Path) -> None:
    """The table in a results file anew, and the figure beside the records."""
    trials = read_trials(records)
    text = results.read_text(encoding="utf-8")
    table = as_markdown(trial_rows(trials)).replace("\\", "\\\\")
    write_text(results, _TABLE.sub(rf"\g<1>{table}\n\g<2>", text))
    draw_path(trials, records.with_suffix(".png"))


def main() -> None:
    cfg = parse(Config, description=__doc__)
    records = Path(cfg.records)
    if cfg.results:
        regenerate(records, Path(cfg.results))
        return
    search = read_yaml(cfg.trials)
    if unknown := sorted(set(cfg.only) - set(search["trials"])):
        raise UserError(f"--only {' '.join(unknown)}: no such trial in {cfg.trials}")
    for name in cfg.only or search["trials"]:
        if any((trial.name, trial.seed) == (name, cfg.seed) for trial in read_trials(records)):
            continue
        options = dict(search["trials"][name] or {})
        trial = Trial(name, cost=options.pop("cost", None), options=options, seed=cfg.seed)
        trial = attempt(trial, search["base"], Path(cfg.output) / f"{name}_s{cfg.seed}")
        write_trials(records, [*read_trials(records), trial])
        print(trial.name, trial.failed or trial.scores, flush=True)


if __name__ == "__main__":
    run(main)
