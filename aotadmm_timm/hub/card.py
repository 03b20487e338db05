"""The model card, written from what a run recorded about itself. A number that the run did not record is not in it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData

_TOKEN = re.compile(r"\bhf_[A-Za-z0-9_]{8,}")
# Recipe keys that tell about the author's machine, not about the model.
_PRIVATE_KEYS = {"output", "resume", "config", "root", "data_dir", "cache_dir", "import", "num_workers", "token"}
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
    """The records of a run folder. Missing files are empty records. Raises ValueError for a damaged one, naming it."""
    figure = folder / "curves.png"
    return Run(
        config=_mapping(folder / "config.yaml", yaml.safe_load),
        metrics=_mapping(folder / "metrics.json", json.loads),
        last_step=_last_step(folder / "log.jsonl"),
        figure=figure.name if figure.is_file() else None,
    )


def model_card(
    run: Run, *, repo_id: str, model_config: Mapping[str, Any], num_parameters: int, license: str | None
) -> str:
    """Markdown with the Hub's front matter.

    Args:
        run: the records of the run.
        repo_id: ORG/NAME on the Hub.
        model_config: the config.json that is published (timm's format).
        num_parameters: parameters of the published model.
        license: SPDX-like id as the Hub knows it; None leaves it unstated.
    """
    architecture = model_config["architecture"]
    classes = model_config.get("num_classes", 0)
    task = "image-classification" if classes else "image-feature-extraction"
    dataset = _dataset(run.config.get("dataset"))
    method = run.metrics.get("convention", {}).get("method") or run.config.get("method")
    data = ModelCardData(
        library_name="timm",
        pipeline_tag=task,
        license=license,
        datasets=[_HUB_DATASETS.get(dataset, dataset.removeprefix("hfds/"))] if dataset else None,
        tags=["timm", "aotadmm_timm", "self-supervised-learning", *([str(method)] if method else [])],
    )
    input_size = model_config.get("pretrained_cfg", {}).get("input_size", [])
    intro = f"`{architecture}`, {num_parameters / 1e6:.2f} M parameters"
    intro += f", input {'x'.join(map(str, input_size[-2:]))}" if input_size else ""
    intro += f", pretrained on {dataset}." if dataset else "."
    sections = [
        f"---\n{data.to_yaml()}\n---\n\n# {repo_id.partition('/')[2]}\n\n{intro}",
        _usage(repo_id, architecture, classes),
        _results(run),
        _recipe(run),
        _environment(run, license),
    ]
    if run.figure:
        sections.append(f"## Training curves\n\n![Loss and probe scores over the training steps]({run.figure})")
    return scrub("\n\n".join(section for section in sections if section) + "\n")


def scrub(text: str) -> str:
    """`text` without anything that looks like a Hub token."""
    return _TOKEN.sub("hf_***", text)


def _usage(repo_id: str, architecture: str, classes: int) -> str:
    what = "logits" if classes else "one feature vector per image"
    return f"""## Use

```bash
pip install "aotadmm_timm=={version("aotadmm_timm")}" "timm=={version("timm")}"
```

```python
import aotadmm_timm, timm  # the first import registers {architecture} with timm
model = timm.create_model("hf-hub:{repo_id}", pretrained=True).eval()
```

`model(images)` gives {what}; `timm.data.create_transform(**timm.data.resolve_data_config(model=model))` is the
preprocessing. `RuntimeError: Unknown model ({architecture})` means that `import aotadmm_timm` is missing."""


def _results(run: Run) -> str:
    """A table: one row per score, one column per block of scores (the model, and the baselines measured beside it)."""
    blocks = {name: block for name, block in run.metrics.items() if _is_scores(block)}
    if not blocks:
        return ""
    names = list(dict.fromkeys(key.removesuffix("_mean") for block in blocks.values() for key in block))
    names = [n for n in names if not n.endswith("_std") and any(_score(block, n) for block in blocks.values())]
    lines = [f"| | {' | '.join(blocks)} |", "|---" * (len(blocks) + 1) + "|"]
    for name in names:
        cells = [_score(block, name) or "-" for block in blocks.values()]
        lines.append(f"| {_SCORES.get(name, name)} | {' | '.join(cells)} |")
    counts = _counts(run)
    return "## Results\n\n" + "\n".join(lines) + (f"\n\n{counts}" if counts else "")


def _score(block: Mapping[str, Any], name: str) -> str | None:
    value = block.get(f"{name}_mean", block.get(name))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    spread = block.get(f"{name}_std")
    if not 0 <= value <= 1 or name == "rankme":  # scores of models are fractions; everything else keeps its unit
        return f"{value:.2f}" + (f" ± {spread:.2f}" if isinstance(spread, int | float) else "")
    return f"{100 * value:.2f} %" + (f" ± {100 * spread:.2f}" if isinstance(spread, int | float) else "")


def _counts(run: Run) -> str:
    """How many images, draws and seeds stand behind the scores, as far as the run says."""
    metrics, parts = run.metrics, []
    test = metrics.get("test_images", metrics.get("num_test"))
    if isinstance(test, int) and test > 0:
        parts.append(
            f"n = {test:,} test images, so one standard error of an accuracy p is sqrt(p (1 - p) / {test}), "
            f"at most {50 / test**0.5:.2f} points."
        )
    draws = metrics.get("few_label_draws")
    if isinstance(draws, int):
        parts.append(f"± is the standard deviation over {draws} draws of the labelled images.")
    elif any(key.endswith("_std") for block in metrics.values() if _is_scores(block) for key in block):
        parts.append("± is one standard deviation over the draws of the labelled images.")
    if "seed" in run.config:
        parts.append(f"One training run (seed {run.config['seed']}).")
    return " ".join(parts)


def _recipe(run: Run) -> str:
    rows = [f"| {key} | {_plain(value)} |" for key, value in run.config.items() if _public(key, value)]
    text = "## Recipe\n\n| option | value |\n|---|---|\n" + "\n".join(rows) if rows else ""
    convention = run.metrics.get("convention")
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
    lines = [f"- {key}: {_plain(value)}" for key, value in rows.items() if _public(str(key), value)]
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
    return key not in _PRIVATE_KEYS and value is not None


def _plain(value: Any) -> str:
    """One table cell: no line breaks, no cell borders, and of absolute or relative paths only the file name."""
    if isinstance(value, str) and re.match(r"(hfds/|wds/)?[./~].*/", value):
        value = Path(value).name
    return " ".join(str(value).split()).replace("|", "\\|")


def _is_scores(block: Any) -> bool:
    return (
        isinstance(block, Mapping)
        and bool(block)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in block.values())
    )


def _mapping(path: Path, load: Any) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping, got {type(content).__name__}")
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
