"""A timm model with its weights, by registered name, folder or Hub id; what strangers wrote is checked before use."""

import difflib
import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from safetensors import SafetensorError, safe_open
from timm.models import parse_model_name
from torch import nn

from aotadmm_timm.models.checkpoint import unwrap_state_dict
from aotadmm_timm.models.official import translate

# Bounds on the numbers of a config.json: far above any real model, far below what exhausts a machine.
_LARGEST = {"depth": 256, "depths": 256, "img_size": 4096, "input_size": 4096}
_LARGEST_OTHER = 65536
# Keys with which a configuration could make the loader read something other than the weights beside it, or return
# something other than the model. timm's factory takes most of them as arguments, so `model_args` could smuggle them in.
_LOADER_KEYS = {
    "file", "url", "state_dict", "custom_load", "checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg",
    "pretrained_cfg_overlay", "features_only", "scriptable", "exportable",
}  # fmt: skip


@dataclass(frozen=True)
class Provenance:
    """Where a model's weights came from: its name, Hub commit if any, and a digest of the weights themselves."""

    name: str
    architecture: str
    revision: str | None
    weights_sha256: str


def load_encoder(name: str, *, random_init: bool = False) -> tuple[nn.Module, Provenance]:
    """The backbone alone: `load_model` without a classifier."""
    return load_model(name, random_init=random_init, num_classes=0)


def load_model(name: str, *, random_init: bool = False, **kwargs: Any) -> tuple[nn.Module, Provenance]:
    """Build the model that `name` means, in eval mode, and load its weights.

    Args:
        name: a model registered with timm (`aot_admm_tiny`), a folder in timm's `local-dir:` format, a run folder (its
            `encoder/`), or `hf-hub:ORG/NAME[@REVISION]`.
        random_init: build a registered model without weights; otherwise one that has none is refused.
        kwargs: timm's model arguments.
    Raises: ValueError in one line for an unknown name, missing weights, a Hub that does not answer, or a folder whose
        configuration or weights are not what they claim to be.
    """
    revision = None
    if Path(name).is_dir() and not timm.is_model(name):  # ./NAME for a folder that is called like a model
        name = f"local-dir:{encoder_folder(Path(name))}"
    source, identifier = parse_model_name(name)
    if source is not None and random_init:
        raise ValueError(f"{name}: --random-init needs a registered model name, not a folder or Hub id")
    target = name
    try:
        if source == "local-dir":
            _check_folder(Path(identifier))
        elif source == "hf-hub":
            revision = _check_hub(identifier)
            target = f"hf-hub:{identifier.partition('@')[0]}@{revision}" if revision else name  # what was checked
        elif not timm.is_model(name.partition(".")[0]):
            close = difflib.get_close_matches(name, timm.list_models(), n=1)
            raise ValueError(f"unknown model {name!r}" + (f"; did you mean {close[0]}?" if close else ""))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # weights that are not loaded are the same in every process
            model = timm.create_model(target, pretrained=not random_init, **kwargs).eval()
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, EntryNotFoundError) as error:
        raise ValueError(f"{name}: {_first_line(error)}") from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"{name}: refused: its weights are a pickle that holds more than tensors") from error
    except (RuntimeError, SafetensorError, KeyError, TypeError) as error:
        if "No pretrained weights exist" in str(error) or "Invalid pretrained tag" in str(error):
            raise ValueError(
                f"{name}: there are no weights of that name; --random-init runs it untrained, a run folder, model "
                "folder or hf-hub:ORG/NAME in its place brings weights along"
            ) from error
        raise ValueError(f"{name}: {_first_line(error)}") from error
    cfg: Any = model.pretrained_cfg
    architecture = cfg.get("architecture", name)
    if source is None and not random_init and cfg.get("tag"):
        name = f"{architecture}.{cfg['tag']}"
    return model, Provenance(name, architecture, revision, state_digest(model.state_dict()))


def load_state(
    name: str, state: Mapping[str, Any], *, overlay: Mapping[str, Any] | None = None, **kwargs: Any
) -> nn.Module:
    """A registered model with the weights `state` (possibly wrapped), all of them, in eval mode.

    It has the classes of the classifier in `state`: with another number timm would load what happens to fit and leave
    the rest random.

    Args:
        overlay: entries of the pretrained cfg that belong to these weights, such as `input_size`.
        kwargs: constructor arguments; `num_classes` among them is not regarded.
    Raises: ValueError in one line that names what does not fit; TypeError for an argument that the model does not know.
    """
    config = timm.get_pretrained_cfg(name)
    names = config.classifier if config is not None else None
    try:
        state = unwrap_state_dict(dict(state))
        head = translate(state).get(f"{names if isinstance(names, str) or not names else names[0]}.weight")
        classes = len(head) if head is not None else 0
        return timm.create_model(
            name,
            pretrained=True,
            pretrained_cfg_overlay={**(overlay or {}), "state_dict": state, "num_classes": classes},
            **{**kwargs, "num_classes": classes},
        ).eval()
    except (RuntimeError, KeyError, ValueError, AssertionError, AttributeError) as error:
        # torch names missing and unexpected tensors below a first line that says only that there are some
        text = " ".join(" ".join(line.split()) for line in str(error).splitlines()[:3]) or type(error).__name__
        raise ValueError(f"does not fit {name}: {text if len(text) <= 500 else text[:500] + ' ...'}") from error


def encoder_folder(folder: Path) -> Path:
    """The folder with config.json and weights: the `encoder/` of a run, or `folder` itself. Raises ValueError."""
    for candidate in (folder / "encoder", folder):
        if (candidate / "config.json").is_file():
            return candidate
    if (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder}: the run has not finished, it has no encoder/ yet; name one of its checkpoints/")
    raise ValueError(f"{folder}: neither a run (no encoder/config.json) nor a model folder (no config.json)")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json in timm's format, checked by `check_config`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path}: not a readable config.json: {error}") from error
    check_config(config, str(path))
    return config


def check_config(config: Any, where: str) -> None:
    """Refuse a configuration with a foreign architecture, absurd sizes, or files other than the weights beside it.

    Raises: ValueError naming `where` and the offending entry.
    """
    if not isinstance(config, dict):
        raise ValueError(f"{where}: expected a mapping, got {type(config).__name__}")
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise ValueError(f"{where}: architecture {architecture!r} is not registered with timm")
    for part in ("model_args", "pretrained_cfg"):
        entries = config.get(part, {})
        if not isinstance(entries, dict):
            raise ValueError(f"{where}: {part} should be a mapping, got {type(entries).__name__}")
        for key in _loader_keys(entries):
            raise ValueError(f"{where}: {part}.{key} is refused: weights come from beside the configuration")
        for key, value in entries.items():
            for number in _numbers(value):
                if not abs(number) <= _LARGEST.get(key, _LARGEST_OTHER):
                    raise ValueError(f"{where}: {part}.{key} = {value} is out of range")
    filename = config.get("pretrained_cfg", {}).get("hf_hub_filename") or ""
    if not isinstance(filename, str) or Path(filename).name != filename:
        raise ValueError(f"{where}: pretrained_cfg.hf_hub_filename {filename!r} is not a plain file name")


def state_digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_folder(folder: Path) -> None:
    config = read_config(folder / "config.json")
    weights = folder / "model.safetensors"
    if weights.is_file():
        _check_size(config, str(folder), stored_parameters(weights))


def _check_hub(identifier: str) -> str | None:
    """Download and check config.json and the header of the weights; the commit they belong to."""
    repo, _, revision = identifier.partition("@")
    path = Path(hf_hub_download(repo, "config.json", revision=revision or None))
    config = read_config(path)
    try:
        weights = hf_hub_download(repo, "model.safetensors", revision=revision or None)
        _check_size(config, f"hf-hub:{identifier}", stored_parameters(Path(weights)))
    except EntryNotFoundError as error:
        if not isinstance(error, HfHubHTTPError):
            raise  # not in the cache, and the Hub is out of reach
    return path.parent.name if path.parent.parent.name == "snapshots" else None


def stored_parameters(weights: Path) -> int:
    """The number of elements in a safetensors file, read from its header alone. Raises ValueError if it is damaged."""
    try:
        with safe_open(weights, framework="pt") as file:
            shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{weights}: not a readable safetensors file: {error}") from error
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def _check_size(config: dict[str, Any], where: str, stored: int) -> None:
    """Compare the model that a configuration describes, built without memory, with the weights that come with it."""
    try:
        with torch.device("meta"):
            model = timm.create_model(
                config["architecture"],
                pretrained=False,
                num_classes=config.get("num_classes", 0),
                **{k: v for k, v in config.get("model_args", {}).items() if k != "num_classes"},
            )
    except NotImplementedError:  # a model that cannot be built without memory; the bounds above still hold
        return
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > 2 * stored + 1_000_000:
        raise ValueError(f"{where}: config.json describes {described:,} parameters, the weights hold {stored:,}")


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


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
