"""What is evaluated: a model, with its untrained twin, projector and views where a run tells them."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aotadmm_timm.data.multicrop import MultiCrop, default_crop
from aotadmm_timm.data.preprocessing import data_config
from aotadmm_timm.methods.projector import Projector
from aotadmm_timm.plugin import import_plugin
from aotadmm_timm.pretrained import build_model, open_model
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.config import read_yaml


@dataclass
class Subject:
    """A model to evaluate; all modules in eval mode on one device."""

    name: str
    model: nn.Module  # images -> features
    untrained: nn.Module | None = None  # the same architecture with random weights, if that can be told
    projected: nn.Module | None = None  # images -> projector output, if the run's checkpoint holds a projector
    run: Path | None = None
    config: dict[str, Any] = field(default_factory=dict)  # the run's config.yaml

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) that the model sees."""
        size = getattr(getattr(self.model, "patch_embed", None), "img_size", None)
        height, width = size or data_config(self.model)["input_size"][1:]
        return height, width


def load_subject(name: str, device: torch.device, *, random_init: bool = False, plugin: str | None = None) -> Subject:
    """A run folder, a folder in timm's format, a registered model or `hf-hub:ORG/NAME`.

    Args:
        random_init: take a registered model untrained.
        plugin: file or module to import first; a run's own `--import` is imported in any case.
    Raises: UserError in one line if there is no such model.
    """
    run = Path(name) if (Path(name) / "config.yaml").is_file() else None
    config = read_yaml(run / "config.yaml") if run else {}
    for module in filter(None, (config.get("import"), plugin)):
        import_plugin(module)
    model, _ = open_model(name, num_classes=0, random_init=random_init)
    subject = Subject(name, model.to(device), run=run, config=config)
    if not random_init:
        twin = _untrained(model, int(config.get("seed", 0)))
        subject.untrained = twin.to(device).eval() if twin is not None else None
    if run:
        projected = _projected(run, model)
        subject.projected = projected.to(device).eval() if projected is not None else None
    return subject


def evaluation_views(subject: Subject, dataset: str, views: int, seed: int) -> MultiCrop:
    """The augmentation of the run's global views, or the default one for `dataset`, at the model's size."""
    run = subject.config
    crop = default_crop(run.get("views", "auto"), run.get("dataset", dataset))
    if scale := run.get("global_scale"):
        crop = crop.replace(global_scale=tuple(scale))
    data = data_config(subject.model)
    return crop.replace(
        num_global=views, num_local=0, global_size=subject.image_size[0], mean=data["mean"], std=data["std"], seed=seed
    )


def _untrained(model: Any, seed: int) -> nn.Module | None:
    """The same architecture, made with the same arguments; None if that comes to another shape."""
    arguments = {key: value for key, value in model._model_args.items() if key != "num_classes"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin, _ = build_model(model.pretrained_cfg["architecture"], num_classes=0, **arguments)
    shapes = {key: value.shape for key, value in twin.state_dict().items()}
    same = shapes == {key: value.shape for key, value in model.state_dict().items()}
    return twin if same else None


def _projected(run: Path, model: nn.Module) -> nn.Module | None:
    """Backbone and projector as the last checkpoint has them: the exported encoder may be their moving average."""
    if not any((run / "checkpoints" / name).exists() for name in (checkpoints.LAST, checkpoints.PREVIOUS)):
        return None
    snapshot = checkpoints.find(str(run), run)
    state = snapshot["state"]["method"] if snapshot else {}
    part = {key.removeprefix("projector."): value for key, value in state.items() if key.startswith("projector.")}
    widths = [value.shape for key, value in part.items() if key.endswith("weight") and value.ndim == 2]
    if not widths:
        return None
    projector = Projector(widths[0][1], *(shape[0] for shape in widths))
    projector.load_state_dict(part)
    backbone = copy.deepcopy(model)
    backbone.load_state_dict({k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")})
    return nn.Sequential(backbone, projector)
