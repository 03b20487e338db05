"""The configuration of a run as YAML."""

from pathlib import Path
from typing import Any

import yaml

from aotadmm_timm.errors import UserError

# What a run's config.yaml says beyond its options; it follows from them, so the file can be given as --config.
DERIVED = frozenset(
    {"method", "convention", "architecture", "model_args", "pretrained_cfg", "classes", "train_images", "world"}
)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError naming the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise UserError(f"--config {path}: {err.strerror or err}") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path}: not a text file") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(err).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected `key: value` lines, got a {type(values).__name__}")
    return values
