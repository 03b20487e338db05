"""Model folders in timm's format; what strangers wrote into their config.json is checked before it is used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch

from aotadmm_timm.errors import DamagedFile, ModelNotFound, WeightsMismatch
from aotadmm_timm.pretrained.building import REFUSALS
from aotadmm_timm.pretrained.weights_file import stored_parameters

# Bounds on the numbers of a config.json: far above any real model, far below what exhausts a machine.
_LARGEST = {"depth": 256, "depths": 256, "img_size": 4096, "input_size": 4096}
_LARGEST_OTHER = 65536
# Keys with which a configuration could make the loader read something other than the weights beside it, or return
# something other than the model. timm's factory takes most of them as arguments, so `model_args` could smuggle them in.
_LOADER_KEYS = {
    "file", "url", "state_dict", "custom_load", "checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg",
    "pretrained_cfg_overlay", "features_only", "scriptable", "exportable",
}  # fmt: skip


def encoder_folder(folder: Path) -> Path:
    """The folder with config.json and weights: the `encoder/` of a run, or `folder` itself. Raises ModelNotFound."""
    for candidate in (folder / "encoder", folder):
        if (candidate / "config.json").is_file():
            return candidate
    if (folder / "checkpoints").is_dir():
        raise ModelNotFound(f"{folder}: the run has not finished, it has no encoder/ yet; name one of its checkpoints/")
    raise ModelNotFound(f"{folder}: neither a run (no encoder/config.json) nor a model folder (no config.json)")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json in timm's format, checked by `check_config`. Raises DamagedFile if it is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as err:
        raise DamagedFile(f"{path}: not a readable config.json: {err}") from None
    check_config(config, str(path))
    return config


def check_config(config: Any, where: str) -> None:
    """Refuse a configuration with a foreign architecture, absurd sizes, or files other than the weights beside it.

    Raises: ModelNotFound or DamagedFile, naming `where` and the offending entry.
    """
    if not isinstance(config, dict):
        raise DamagedFile(f"{where}: expected a mapping, got {type(config).__name__}")
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise ModelNotFound(f"{where}: architecture {architecture!r} is not registered with timm")
    for part in ("model_args", "pretrained_cfg"):
        entries = config.get(part, {})
        if not isinstance(entries, dict):
            raise DamagedFile(f"{where}: {part} should be a mapping, got {type(entries).__name__}")
        for key in _loader_keys(entries):
            raise DamagedFile(f"{where}: {part}.{key} is refused: weights come from beside the configuration")
        for key, value in entries.items():
            for number in _numbers(value):
                if not abs(number) <= _LARGEST.get(key, _LARGEST_OTHER):
                    raise DamagedFile(f"{where}: {part}.{key} = {value} is out of range")
    filename = config.get("pretrained_cfg", {}).get("hf_hub_filename") or ""
    if not isinstance(filename, str) or Path(filename).name != filename:
        raise DamagedFile(f"{where}: pretrained_cfg.hf_hub_filename {filename!r} is not a plain file name")


def check_size(config: dict[str, Any], where: str, weights: Path) -> None:
    """Compare the model that a configuration describes, built without memory, with the weights that come with it.

    Raises: WeightsMismatch if it describes far more parameters than they hold; DamagedFile.
    """
    stored = stored_parameters(weights)
    try:
        with torch.device("meta"):
            model = timm.create_model(
                config["architecture"],
                pretrained=False,
                num_classes=config.get("num_classes", 0),
                **{k: v for k, v in config.get("model_args", {}).items() if k != "num_classes"},
            )
    except REFUSALS:  # arguments that the real model will refuse by name; or it cannot be built without memory
        return
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > 2 * stored + 1_000_000:
        raise WeightsMismatch(f"{where}: config.json describes {described:,} parameters, the weights hold {stored:,}")


def _loader_keys(value: Any) -> Iterator[str]:
    """Keys of `_LOADER_KEYS` that are set, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _LOADER_KEYS and inner:
                yield key
            else:
                yield from _loader_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _loader_keys(inner)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
