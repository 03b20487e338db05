"""`open_model`: the one way in which weights become a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import is_model, is_model_pretrained, parse_model_name
from torch import nn

from aotadmm_timm.errors import ModelNotFound, UserError, WeightsMismatch
from aotadmm_timm.models.official import translate
from aotadmm_timm.pretrained.adapting import adapt
from aotadmm_timm.pretrained.building import build_model, check_name
from aotadmm_timm.pretrained.hub_snapshot import fetch_checked
from aotadmm_timm.pretrained.model_folder import check_size, encoder_folder, read_config
from aotadmm_timm.pretrained.weights_file import read_weights
from aotadmm_timm.runs.config import read_yaml


@dataclass(frozen=True)
class Origin:
    """What is known of where a model's weights come from.

    Attributes:
        name: what it can be opened by again: `aot_admm_tiny.lejepa_cifar10`, `local-dir:FOLDER`, a file, `hf-hub:...`.
        architecture: its registered name.
        revision: commit on the Hub.
        run: the run folder that the weights lie in.
        finished: whether they are those that the run ended with, the ones that its scores are of.
        config: the run's config.yaml.
    """

    name: str
    architecture: str
    revision: str | None = None
    run: Path | None = None
    finished: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)


def open_model(
    source: str | Path,
    *,
    model: str | None = None,
    num_classes: int | None = None,
    img_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    random_init: bool = False,
) -> tuple[nn.Module, Origin]:
    """The model that `source` means, with its weights and its `pretrained_cfg`, in evaluation mode, on the CPU.

    It has the classes that the weights have, unless `num_classes` says otherwise. No random number of the caller's is
    used up: weights that are not loaded (a new classifier) are the same in every process.

    Args:
        source: a timm name (`aot_admm_tiny`, `aot_admm_tiny.lejepa_cifar10`); a run folder (its `encoder/`) or a model
            folder in timm's format, also as `local-dir:FOLDER`; `hf-hub:ORG/NAME[@REVISION]`; a .safetensors or .pth
            file; a training checkpoint. A folder that is called like a model is meant by ./NAME.
        model: timm name, for a file that does not lie in a run or model folder; elsewhere it must be the stored one.
        num_classes: outputs of the classifier, 0 for none.
        img_size: side of the images [pixels]; positions are resampled. Convolutional networks have no use for it.
        model_kwargs: constructor arguments, over those stored with the weights.
        random_init: a registered model without weights.
    Raises: UserError in one line that names `source`: ModelNotFound, WeightsMismatch, DamagedFile, Unreachable, or that
        type itself for arguments that the model refuses.
    """
    name, path, arguments = str(source), Path(source), dict(model_kwargs or {})
    sizes: list[dict[str, Any]] = [{"img_size": img_size}, {}] if img_size else [{}]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            if random_init:
                network, origin = _untrained(name, num_classes, sizes, arguments)
            elif is_bare_file(path):
                network, origin = _from_file(path, model, sizes, arguments)
            else:
                network, origin = _from_name(name, path, sizes, arguments)
            if num_classes is not None or img_size is not None:
                adapt(network, num_classes=num_classes, img_size=img_size)
        except UserError as err:
            raise type(err)(str(err) if name in str(err) else f"{source}: {err}") from err.__cause__
    if model is not None and origin.architecture != model.partition(".")[0]:
        raise WeightsMismatch(f"{source}: the weights are of {origin.architecture}, not of {model}")
    return network.eval(), origin


def is_bare_file(path: Path) -> bool:
    """Whether `path` is a file other than the weights that the folder it lies in is opened by."""
    return path.is_file() and not (path.name == "model.safetensors" and (path.parent / "config.json").is_file())


def _untrained(
    name: str, num_classes: int | None, sizes: list[dict[str, Any]], arguments: dict[str, Any]
) -> tuple[Any, Origin]:
    if not is_model(name) and (Path(name).exists() or ":" in name or "/" in name):
        raise UserError(f"{name}: --random-init needs a registered model name, not a folder or Hub id")
    check_name(name)
    classes = {} if num_classes is None else {"num_classes": num_classes}
    return build_model(name, sizes, **classes, **arguments)[0], Origin(name, name.partition(".")[0])


def _from_name(name: str, path: Path, sizes: list[dict[str, Any]], arguments: dict[str, Any]) -> tuple[Any, Origin]:
    """A registered name, a folder, or a repository on the Hub: what timm's factory opens, once it has been checked."""
    if path.is_file():
        path = path.parent
    if path.is_dir() and not is_model(name):
        name = f"local-dir:{encoder_folder(path)}"
    try:
        scheme, identifier = parse_model_name(name)
    except ValueError:
        hub = f"; hf-hub:{name} is a model on the Hub" if name.count("/") == 1 and ":" not in name else ""
        raise ModelNotFound(f"{name}: no such run, model folder, file of weights or timm name{hub}") from None
    if scheme == "local-dir":
        return _from_folder(name, Path(identifier), sizes, arguments)
    if scheme == "hf-hub":
        revision = fetch_checked(identifier)
        pinned = f"hf-hub:{identifier.partition('@')[0]}@{revision}" if revision else name  # what was checked
        network, _ = build_model(pinned, sizes, pretrained=True, **arguments)
        return network, Origin(name, network.pretrained_cfg["architecture"], revision)
    check_name(name)
    if not is_model_pretrained(name):
        raise ModelNotFound(
            f"{name}: there are no weights of that name; --random-init runs it untrained, a run folder, model folder "
            "or hf-hub:ORG/NAME in its place brings weights along"
        )
    network, _ = build_model(name, sizes, pretrained=True, **arguments)
    architecture, tag = network.pretrained_cfg["architecture"], network.pretrained_cfg.get("tag")
    return network, Origin(f"{architecture}.{tag}" if tag else architecture, architecture)


def _from_folder(name: str, folder: Path, sizes: list[dict[str, Any]], arguments: dict[str, Any]) -> tuple[Any, Origin]:
    config = read_config(folder / "config.json")
    if (folder / "model.safetensors").is_file():
        check_size(config, str(folder), folder / "model.safetensors")
    elif not any(file.suffix in (".safetensors", ".bin", ".pth", ".tar") for file in folder.iterdir()):
        raise ModelNotFound(f"{folder}: a model folder without weights (no model.safetensors)")
    network, _ = build_model(name, sizes, pretrained=True, **arguments)
    run = folder.resolve().parent if folder.resolve().name == "encoder" else folder
    return network, Origin(name, config["architecture"], **_records(run, finished=True))


def _from_file(
    path: Path, model: str | None, sizes: list[dict[str, Any]], arguments: dict[str, Any]
) -> tuple[Any, Origin]:
    """The model of a file of weights: named by `model`, or by the config.json beside it or the run it lies in."""
    records = _records(path.parent.parent, finished=False) if path.parent.name == "checkpoints" else {}
    stored: Mapping[str, Any] = records.get("config", {})
    if (config := path.parent / "config.json").is_file():
        stored = read_config(config)
    known = stored.get("architecture", stored.get("model"))
    name = model or known
    if name is None:
        raise ModelNotFound(f"{path}: a file of weights does not say which model it belongs to; add --model NAME")
    check_name(name)
    if name != known:
        stored = {}  # arguments of another architecture
    keys = ("mean", "std", "input_size", "label_names")
    overlay = {key: value for key in keys if (value := stored.get("pretrained_cfg", {}).get(key)) is not None}
    state = read_weights(path)
    # With another number of classes timm would load what happens to fit and leave the rest random.
    classes = {"num_classes": _classes(name, state)}
    overlay |= {"state_dict": state, **classes}
    arguments = {**stored.get("model_args", {}), **arguments, **classes}
    sizes = [{**arguments, **size} for size in sizes]
    network, _ = build_model(name, sizes, pretrained=True, pretrained_cfg_overlay=overlay)
    return network, Origin(str(path), name.partition(".")[0], **records)


def _classes(name: str, state: Mapping[str, Any]) -> int:
    """Outputs of the classifier in a state dict; 0 if there is none."""
    config = timm.get_pretrained_cfg(name)
    names = config.classifier if config is not None else None
    head = translate(dict(state)).get(f"{names if isinstance(names, str) or not names else names[0]}.weight")
    return len(head) if head is not None else 0


def _records(run: Path, *, finished: bool) -> dict[str, Any]:
    """The entries of an `Origin` for weights that lie in a run folder; none if `run` is not one."""
    file = run / "config.yaml"
    return {"run": run, "finished": finished, "config": read_yaml(file)} if file.is_file() else {}
