"""What the layers of an unrolled model do to images, as numbers and as figures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aotadmm_timm.data import Images, eval_loader
from aotadmm_timm.evaluation.features import evenly_spread
from aotadmm_timm.evaluation.layerwise import has_subspaces, layer_curves, theory_gap
from aotadmm_timm.evaluation.maps import attention_maps, patch_pca
from aotadmm_timm.evaluation.plots import layer_figure, map_figure
from aotadmm_timm.evaluation.results import Figures
from aotadmm_timm.evaluation.subject import Subject
from aotadmm_timm.models.unrolled import UnrolledTransformer

_PICTURES = 6  # images whose attention is drawn


def look_inside(subject: Subject, images: Images, count: int) -> tuple[dict[str, Any], Figures]:
    """Layer-wise rows over `count` images, evenly spread, and their figures; nothing for a model of another kind."""
    model: Any = subject.model
    if not count or not isinstance(model, UnrolledTransformer):
        return {}, {}
    chosen = evenly_spread(len(images), count)
    loader = eval_loader(images, model, batch_size=len(chosen), indices=chosen)
    batch = next(iter(loader))[0].to(next(model.parameters()).device)
    models = {"pretrained": model, "untrained": subject.untrained}
    rows = {
        name: {"curves": layer_curves(m, batch), "theory_gap": theory_gap(m, batch)}
        for name, m in models.items()
        if m is not None
    }
    figures: Figures = {
        "Layer by layer": (
            layer_figure({name: [*part["curves"], *part["theory_gap"]] for name, part in rows.items()}),
            f"Means over {len(batch)} images. `layer_curves` and `theory_gap` (aotadmm_timm.evaluation) define the "
            "panels.",
        )
    }
    if has_subspaces(model.blocks[-1]) and batch.shape[1] in (1, 3):
        figures["Attention and patches"] = _attention(model, batch[:_PICTURES])
    return {"images": len(batch), **rows}, figures


def _attention(model: Any, images: Tensor) -> tuple[Any, str]:
    mean, std = (torch.tensor(model.pretrained_cfg[k], device=images.device).view(-1, 1, 1) for k in ("mean", "std"))
    pictures = (images * std + mean).clamp(0, 1).expand(-1, 3, -1, -1)
    figure = map_figure(pictures.cpu(), attention_maps(model, images).cpu(), patch_pca(model, images).cpu())
    return (
        figure,
        "Attention of the class token in the last layer, and three principal components of the patch features.",
    )
