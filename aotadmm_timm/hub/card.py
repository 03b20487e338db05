"""The model card, written from what a run recorded about itself. A number that the run did not record is not in it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import yaml
from huggingface_hub import ModelCardData, get_token

from aotadmm_timm import __version__
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import known
from aotadmm_timm.runs.places import placeless_command

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9_]{8,}")
# Entries of a block of scores that are no scores.
_COUNTS = ("train_images", "test_images", "width")
# What the Hub calls the data sets that have another name here.
_HUB_DATASETS = {"torch/cifar10": "uoft-cs/cifar10", "torch/cifar100": "uoft-cs/cifar100"}
_SCORES = {
    "knn20": "kNN, k = 20",
    "knn200": "kNN, k = 200",
    "linear": "linear probe",
    "few_label": "few-label probe",
    "rankme": "RankMe",
}


@dataclass(frozen=True)
class Run:
    """What is known about how a model was made; every part may be missing.

    Attributes:
        config: the resolved configuration, config.yaml.
        metrics: metrics.json: blocks of scores by name, `convention`, `environment`, `seconds`, `images_per_second`.
        last_step: the last training record of log.jsonl.
        figure: file name of the loss figure, if it travels with the card.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    last_step: Mapping[str, Any] = field(default_factory=dict)
    figure: str | None = None


def read_run(folder: Path) -> Run:
    """The records of a run folder. Missing files are empty records. Raises UserError for a damaged one, naming it."""
    figure = folder / "curves.png"
    return Run(
        config=_mapping(folder / "config.yaml", yaml.safe_load),
        metrics=_mapping(folder / "metrics.json", json.loads),
        last_step=_last_step(folder / "log.jsonl"),
        figure=figure.name if figure.is_file() else None,
    )


def model_card(
    run: Run,
    *,
    name: str,
    model_config: Mapping[str, Any],
    num_parameters: int,
    license: str | None,
    uses: str | None = None,
) -> str:
    """Markdown with the Hub's front matter.

    Args:
        run: the records of the run.
        name: what `timm.create_model` loads it by: hf-hub:ORG/NAME, or the name of a model that a package brings along.
        model_config: the config.json that is published (timm's format).
        num_parameters: parameters of the published model.
        license: SPDX-like id as the Hub knows it; None leaves it unstated.
        uses: a paragraph on what the model is good for and what not.
    """
    architecture = model_config["architecture"]
    classes = model_config.get("num_classes", 0)
    task = "image-classification" if classes else "image-feature-extraction"
    dataset = _dataset(run.config.get("dataset"))
    method = run.metrics.get("convention", {}).get("method") or run.config.get("method")
    owner = timm.model_entrypoint(architecture).__module__.partition(".")[0]
    data = ModelCardData(
        library_name="timm",
        pipeline_tag=task,
        license=license,
        datasets=[_HUB_DATASETS.get(dataset, dataset.removeprefix("hfds/"))] if dataset else None,
        tags=list(
            dict.fromkeys(["timm", owner, "self-supervised-learning", *([str(method).lower()] if method else [])])
        ),
    )
    input_size = model_config.get("pretrained_cfg", {}).get("input_size", [])
    intro = f"`{architecture}`, {num_parameters / 1e6:.2f} M parameters"
    intro += f", input {'x'.join(map(str, input_size[-2:]))}" if input_size else ""
    intro += f", trained on {dataset}." if dataset else "."
    sections = [
        f"---\n{data.to_yaml()}\n---\n\n# {name.rpartition('/')[2]}\n\n{intro}",
        _usage(name, architecture, owner, classes),
        f"## Uses\n\n{uses}" if uses else "",
        _results(run),
        _recipe(run),
        _environment(run, license),
    ]
    if run.figure:
        sections.append(f"## Training curves\n\n![Loss and probe scores over the training steps]({run.figure})")
    return scrub("\n\n".join(section for section in sections if section) + "\n")


def scrub(text: str) -> str:
    """`text` without this user's Hub token, or anything that looks like one."""
    if token := get_token():
        text = text.replace(token, "hf_***")
    return _TOKEN.sub("hf_***", text)


def _usage(name: str, architecture: str, owner: str, classes: int) -> str:
    """How to install and load it; `owner` is the package whose import registers the architecture."""
    what = "logits" if classes else "one feature vector per image"
    ours = [f'"aotadmm_timm=={__version__}"'] if owner == "aotadmm_timm" else []
    versions = [*ours, f'"timm=={timm.__version__}"']
    imports = "import timm"
    remedy = ""
    if owner != "timm":
        imports = f"import {owner}, timm  # the first import registers {architecture} with timm"
        remedy = f" `RuntimeError: Unknown model ({architecture})` means that `import {owner}` is missing."
    if owner not in ("timm", "aotadmm_timm"):
        remedy += f" `{owner}` is code of the author's, not part of a released package."
    return f"""## Use

```bash
pip install {" ".join(versions)}
```

```python
{imports}
model = timm.create_model("{name}", pretrained=True).eval()
```

`model(images)` gives {what}; its preprocessing is
`timm.data.create_transform(**timm.data.resolve_data_config(model=model))`.{remedy}"""


def _results(run: Run) -> str:
    """A table: one row per score, one column per block of scores (the model, and the baselines measured beside it)."""
    metrics = sorted(run.metrics.items(), key=lambda item: item[0] != "pretrained")  # the model, then its baselines
    blocks = {name: block for name, block in metrics if _is_scores(block)}
    names = list(dict.fromkeys(key.removesuffix("_mean") for block in blocks.values() for key in block))
    names = [name for name in names if not name.endswith("_std") and name not in _COUNTS]
    if not names:
        return ""
    lines = [f"| | {' | '.join(blocks)} |", "|---" * (len(blocks) + 1) + "|"]
    for name in names:
        cells = [_score(block, name) or "-" for block in blocks.values()]
        lines.append(f"| {_SCORES.get(name, name)} | {' | '.join(cells)} |")
    return "## Results\n\n" + "\n".join(lines) + "\n\n" + _counts(run, next(iter(blocks.values())))


def _score(block: Mapping[str, Any], name: str) -> str | None:
    """A score with its spread as a table cell. Scores are fractions, shown in per cent; others keep their unit."""
    value, spread = block.get(f"{name}_mean", block.get(name)), block.get(f"{name}_std")
    if value is None:
        return None
    scale, unit = (1.0, "") if name in ("rankme", "cosine") or not 0 <= value <= 1 else (100.0, " %")
    text = f"{scale * value:.2f}{unit}" + (f" ± {scale * spread:.2f}" if spread is not None else "")
    return text + (f" of {block['width']}" if name == "rankme" and "width" in block else "")


def _counts(run: Run, block: Mapping[str, Any]) -> str:
    """How many images, draws and seeds stand behind the scores, as far as the run says."""
    parts = []
    test = block.get("test_images", run.metrics.get("test_images"))
    if isinstance(test, int) and test > 0:
        where = run.metrics.get("evaluated_on")
        parts.append(
            f"n = {test:,} images" + (f" ({where})" if where else "") + f": the standard error of an accuracy p is "
            f"sqrt(p (1 - p) / n), at most {50 / test**0.5:.2f} points."
        )
    if any(key.endswith("_std") for key in block):
        parts.append("± is one standard deviation over the draws of the labelled images.")
    parts.append(f"One training run (seed {run.config['seed']})." if "seed" in run.config else "One training run.")
    return " ".join(parts)


def _recipe(run: Run) -> str:
    rows = [f"| {key} | {_plain(value)} |" for key, value in run.config.items() if _public(key, value)]
    text = "## Recipe\n\n| option | value |\n|---|---|\n" + "\n".join(rows) if rows else ""
    if command := run.metrics.get("command"):
        text = f"{text}\n\n```bash\n{placeless_command(str(command))}\n```".strip()
    convention = run.metrics.get("convention", run.config.get("convention"))
    if isinstance(convention, Mapping) and convention:
        stated = "\n".join(f"- {key}: {_plain(value)}" for key, value in convention.items())
        text += f"\n\n### Loss convention\n\n{stated}"
    last = {k: v for k, v in run.last_step.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if last:
        text += "\n\nLast training record: " + ", ".join(f"{k} {v:.6g}" for k, v in last.items()) + "."
    return text.strip()


def _environment(run: Run, license: str | None) -> str:
    environment = run.metrics.get("environment")
    rows = dict(environment) if isinstance(environment, Mapping) else {}
    for key, label in (("seconds", "training time [s]"), ("images_per_second", "images per second")):
        if isinstance(run.metrics.get(key), int | float):
            rows[label] = f"{run.metrics[key]:.6g}"
    lines = [f"- {key}: {_plain(value)}" for key, value in rows.items() if value is not None]
    lines.append(f"- licence: {license}" if license else "- licence: not stated by the author")
    return "## Made with\n\n" + "\n".join(lines)


def _dataset(name: Any) -> str | None:
    """A data set's public name: of a path on the author's disk only the last part."""
    if not isinstance(name, str) or not name:
        return None
    prefix, slash, rest = name.partition("/")
    path = rest if slash and prefix in ("hfds", "hfids", "wds", "tfds") else name
    if path.startswith(("/", ".", "~")) or "\\" in path or path.count("/") > 1:
        return Path(path).name
    return name


def _public(key: str, value: Any) -> bool:
    """Whether a recipe entry belongs on the card: set, flat, and about the model."""
    return key not in known("published", holds=False) | {"convention"} and value is not None and value != {}


def _plain(value: Any) -> str:
    """One table cell: no line breaks, no cell borders, and of absolute or relative paths only the file name."""
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, dict):
        value = ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, str) and re.match(r"(hfds/|wds/)?[./~].*/", value):
        value = Path(value).name
    return " ".join(str(value).split()).replace("|", "\\|")


def _is_scores(block: Any) -> bool:
    """Whether a block of metrics.json is a table column: numbers by name (null where one could not be computed)."""
    values = [v for v in block.values() if v is not None] if isinstance(block, Mapping) else []
    return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _mapping(path: Path, load: Any) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping, got {type(content).__name__}")
    return content


def _last_step(path: Path) -> Mapping[str, Any]:
    """The last line that records a loss. A cut last line (a killed run) is passed over."""
    last: Mapping[str, Any] = {}
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and "loss" in record:
                    last = record
    return last
