"""Make a finished run's encoder one of the package's bundled weights: half precision, with its card.

    python hub/bundle.py RUN aot_admm_tiny.lejepa_cifar10 --uses "Features of small photographs; ..."

Writes aotadmm_timm/weights/NAME.safetensors, found by timm through the name's pretrained cfg, and hub/cards/NAME/ with
README.md and the loss figure. The scores on the card are those of the rounded weights (beside the run's baselines), so
`python train/evaluate.py NAME --dataset DATASET` gives the same numbers.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import aotadmm_timm
from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.data import load_images, only_readable
from aotadmm_timm.engine.scores import model_scores
from aotadmm_timm.errors import UserError
from aotadmm_timm.hub.card import model_card
from aotadmm_timm.hub.publish import records
from aotadmm_timm.models.configs import cifar_cfg
from aotadmm_timm.pretrained import open_model
from aotadmm_timm.runs.folder import write_text

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 30e6  # bytes: every version of a file stays in the repository's history


@dataclass(frozen=True)
class Config:
    source: str = option(None, "run folder")
    name: str = option(None, "registered model and tag, as in aot_admm_tiny.lejepa_cifar10")
    uses: str | None = option(None, "a paragraph for the card: what the model is good for, and what not")
    dataset: str | None = option(None, "where the run's data set lies now, if elsewhere")
    data_dir: str | None = option(None, "folder of torch/ data sets, cache of hfds/ ones")
    weights: str = option(str(Path(aotadmm_timm.__file__).parent / "weights"), "folder for the weights")
    cards: str = option(str(ROOT / "hub" / "cards"), "folder for the card's folder")


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


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("source", "name"))
    network, origin = open_model(cfg.source)
    record = records(origin)
    if "pretrained" not in record.metrics or record.metrics.get("evaluated_on") != "test":
        raise UserError(f"{cfg.source}: not a finished run with scores on a test set (metrics.json)")
    check_configuration(network, cfg.name, record.config)
    state = half_precision(network.state_dict())
    network.load_state_dict(state)  # what will be loaded, in float32

    dataset = cfg.dataset or record.config["dataset"]
    keys: dict[str, Any] = {key: record.config.get(key) for key in ("input_key", "target_key")}
    keys["root"] = cfg.data_dir or record.config.get("data_dir")
    part = {"num_samples": record.config.get("num_samples"), "seed": record.config["seed"]}
    train = only_readable(load_images(dataset, "train", **part, **keys))
    test = only_readable(load_images(dataset, "test", classes=train.classes, **keys))
    scores = model_scores(train, test, network, network)

    target = Path(cfg.weights) / f"{cfg.name}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_suffix(".part")
    save_file(state, aside, metadata={"format": "pt"})
    aside.chmod(0o644)  # safetensors writes for its owner only
    if aside.stat().st_size > LARGEST:
        aside.unlink()
        raise UserError(f"{cfg.name}: its weights are larger than {LARGEST / 1e6:.0f} MB")
    if any(not torch.equal(value, state[key]) for key, value in load_file(aside).items()):
        raise UserError(f"{aside}: read back, the weights are not the ones that were written")
    os.replace(aside, target)

    folder = Path(cfg.cards) / cfg.name
    folder.mkdir(parents=True, exist_ok=True)
    if record.figure:
        shutil.copyfile(Path(cfg.source) / record.figure, folder / record.figure)
    stated: Any = network.pretrained_cfg
    card = model_card(
        replace(record, metrics={**record.metrics, "pretrained": scores}),
        name=cfg.name,
        model_config={"architecture": cfg.name.partition(".")[0], "num_classes": 0, "pretrained_cfg": stated},
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        license=cifar_cfg()["license"],
        uses=cfg.uses,
    )
    write_text(folder / "README.md", card)
    print(f"{target}\n{folder / 'README.md'}")


if __name__ == "__main__":
    run(main)
