"""A finished run's encoder as one of the package's bundled weights: half precision, with its card."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aotadmm_timm.data import Images, load_images, only_readable
from aotadmm_timm.errors import UserError
from aotadmm_timm.models.configs import cifar_cfg
from aotadmm_timm.pretrained import open_model
from aotadmm_timm.runs.folder import write_text

from .card import model_card
from .publish import records

LARGEST = 30e6  # bytes: every version of a file stays in the repository's history


def bundle(
    source: str,
    name: str,
    score: Callable[[Images, Images, nn.Module], dict[str, float]],
    *,
    weights: Path,
    cards: Path,
    uses: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
) -> tuple[Path, Path]:
    """Write weights/NAME.safetensors and cards/NAME/README.md, with the loss figure if there is one; returns the two.

    Args:
        source: run folder; it has been scored on a test set.
        name: registered model and tag.
        score: train, test, encoder -> scores, for the card.
        uses: a paragraph for the card: what the model is good for, and what not.
        dataset, data_dir: where the run's images lie now, if elsewhere.
    Raises: UserError for a run that a bundled model cannot stand for.
    """
    network, origin = open_model(source)
    record = records(origin)
    if "pretrained" not in record.metrics or record.metrics.get("evaluated_on") != "test":
        raise UserError(f"{source}: not a finished run with scores on a test set (metrics.json)")
    check_configuration(network, name, record.config)
    state = half_precision(network.state_dict())
    network.load_state_dict(state)  # what will be loaded, in float32

    dataset = dataset or record.config["dataset"]
    said = ("input_key", "target_key", "max_pixels", "sample_range")
    keys: dict[str, Any] = {key: record.config.get(key) for key in said}
    keys["root"] = data_dir or record.config.get("data_dir")
    part = {"num_samples": record.config.get("num_samples"), "seed": record.config["seed"]}
    train = only_readable(load_images(dataset, "train", **part, **keys))
    test = only_readable(load_images(dataset, "test", classes=train.classes, **keys))
    scores = score(train, test, network)

    target = Path(weights) / f"{name}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_suffix(".part")
    save_file(state, aside, metadata={"format": "pt"})
    aside.chmod(0o644)  # safetensors writes for its owner only
    if aside.stat().st_size > LARGEST:
        aside.unlink()
        raise UserError(f"{name}: its weights are larger than {LARGEST / 1e6:.0f} MB")
    if any(not torch.equal(value, state[key]) for key, value in load_file(aside).items()):
        raise UserError(f"{aside}: read back, the weights are not the ones that were written")
    os.replace(aside, target)

    folder = Path(cards) / name
    folder.mkdir(parents=True, exist_ok=True)
    if record.figure:
        shutil.copyfile(Path(source) / record.figure, folder / record.figure)
    stated: Any = network.pretrained_cfg
    card = model_card(
        replace(record, metrics={**record.metrics, "pretrained": scores}),
        name=name,
        model_config={"architecture": name.partition(".")[0], "num_classes": 0, "pretrained_cfg": stated},
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        license=cifar_cfg()["license"],
        uses=uses,
    )
    write_text(folder / "README.md", card)
    return target, folder / "README.md"


def half_precision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The floating-point tensors of a state dict in float16, contiguous copies. Raises: UserError for an overflow."""
    half = {k: v.half().contiguous() if v.is_floating_point() else v.clone() for k, v in state.items()}
    if bad := [k for k, v in half.items() if v.is_floating_point() and not bool(v.isfinite().all())]:
        raise UserError(f"{bad[0]} does not fit into half precision")
    return half


def check_configuration(network: nn.Module, name: str, config: Mapping[str, Any]) -> None:
    """Refuse what the cfg of a bundled model could not say. Raises: UserError."""
    stated: Any = network.pretrained_cfg
    architecture, _, tag = name.partition(".")
    if not tag or stated["architecture"] != architecture:
        raise UserError(f"{name}: expected {stated['architecture']}.TAG, the run's model and a tag for its training")
    if kwargs := config.get("model_kwargs"):
        raise UserError(f"the run's model has arguments of its own ({kwargs}); a bundled model has its defaults")
    for key, value in cifar_cfg().items():
        if key in ("input_size", "mean", "std", "crop_pct", "interpolation") and list_of(stated[key]) != list_of(value):
            raise UserError(f"the run's {key} is {stated[key]}; that of bundled models is {value}")


def list_of(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
