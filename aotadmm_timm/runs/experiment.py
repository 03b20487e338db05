"""What an experiment leaves: one record and one figure of its name."""

import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm.runs.environment import describe
from aotadmm_timm.runs.folder import write_text
from aotadmm_timm.runs.places import placeless, placeless_command


def keep_experiment(
    name: str,
    folder: str | Path,
    *,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    findings: Mapping[str, Any],
    seconds: float,
    figure: Any,
) -> tuple[Path, Path]:
    """Write FOLDER/NAME.jsonl and FOLDER/NAME.png, in place of earlier ones.

    Args:
        name: of both files.
        config: options of the run; where its files lie is left out, as in the records of runs.
        rows: one dict for each line of the record after the first; floats are kept to five digits.
        findings: what the experiment came to, for its first line; seconds and environment are added.
        figure: a matplotlib Figure.
    Returns: the two files. A record reads as those of runs do (`records.read_record`).
    """
    folder = Path(folder)
    script = Path(sys.argv[0])
    command = shlex.join(["python", f"train/experiments/{script.name}", *sys.argv[1:]])
    head = {
        "name": name,
        "command": placeless_command(command),
        "config": {key: placeless(value) for key, value in config.items() if key != "output"},
        "metrics": {**findings, "seconds": round(seconds, 1), "environment": describe(torch.device("cpu"))},
    }
    record = folder / f"{name}.jsonl"
    write_text(record, "".join(json.dumps(_rounded(line)) + "\n" for line in (head, *rows)))
    picture = folder / f"{name}.png"
    aside = picture.with_name(f"{picture.name}.part")
    figure.savefig(aside, dpi=90, format="png")
    os.replace(aside, picture)
    return record, picture


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value
