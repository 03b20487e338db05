"""Everything that frozen features are asked: scores, geometry, views, layers; and transfer over many data sets."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aotadmm_timm import distributed
from aotadmm_timm.data import Images, eval_loader, hold_out, if_there, load_images, only_readable
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation import (
    attention_maps,
    augmentation_thickness,
    extract_features,
    layer_curves,
    patch_pca,
    rankme,
    retrieval,
    theory_gap,
    view_cosines,
)
from aotadmm_timm.evaluation.figures import layer_figure, map_figure, spectrum_figure
from aotadmm_timm.evaluation.layerwise import has_subspaces
from aotadmm_timm.evaluation.report import render_report
from aotadmm_timm.evaluation.spectrum import singular_values
from aotadmm_timm.evaluation.summary import align, format_table, frozen_scores, score_rows, to_json
from aotadmm_timm.evaluation.transfer import TRANSFER
from aotadmm_timm.evaluation.view_features import extract_view_features
from aotadmm_timm.models.unrolled import UnrolledTransformer
from aotadmm_timm.options import EvaluateConfig
from aotadmm_timm.runs.curves import draw_curves
from aotadmm_timm.runs.environment import describe
from aotadmm_timm.runs.folder import write_text

from .subject import Subject, evaluation_views, load_subject
from .transfer import transfer

_RETRIEVAL = 10_000  # images at most: each is ranked against all others
_PICTURES = 6  # images whose attention is drawn

Features = tuple[Tensor, Tensor]


def evaluate(cfg: EvaluateConfig) -> dict[str, Any]:
    """Evaluate and write the results; returns what the JSON file holds (on rank 0, elsewhere an empty mapping)."""
    assert cfg.run_or_model is not None
    device = distributed.init_distributed(cfg.device)
    subject = load_subject(cfg.run_or_model, device, random_init=cfg.random_init, plugin=cfg.import_)
    if not cfg.baseline:
        subject.untrained = None
    folder = Path(cfg.output) if cfg.output else _default_folder(subject)
    if not cfg.transfer:
        return _single(cfg, subject, folder, device)
    return transfer(
        subject,
        cfg.transfer_datasets or TRANSFER,
        folder,
        root=cfg.data_dir,
        download=cfg.dataset_download,
        batch_size=cfg.batch_size,
        num_workers=cfg.num_workers,
        seed=cfg.seed,
    )


def _default_folder(subject: Subject) -> Path:
    name = subject.name.rstrip("/").replace("/", "_").replace(":", "_")
    return subject.run / "evaluation" if subject.run else Path("evaluations") / name


def _single(cfg: EvaluateConfig, subject: Subject, folder: Path, device: torch.device) -> dict[str, Any]:
    dataset = cfg.dataset or subject.config.get("dataset")
    if dataset is None:
        raise UserError(f"--dataset is needed: {subject.name} is not a run that names one")
    own = subject.config if dataset == subject.config.get("dataset") else {}
    train, test, where = _open(cfg, dataset, own)

    # All that needs every process comes first; rank 0 then computes alone.
    models = {"pretrained": subject.model, "untrained": subject.untrained, "projector": subject.projected}
    spaces = {name: model for name, model in models.items() if model is not None}
    features: dict[str, tuple[Features, Features]] = {}
    for name, model in spaces.items():
        parts = [
            extract_features(
                model, eval_loader(part, subject.model, batch_size=cfg.batch_size, num_workers=cfg.num_workers)
            )
            for part in (train, test)
        ]
        features[name] = parts[0], parts[1]
    views, view_y = None, None
    height, width = subject.image_size
    if cfg.views and len(train) >= 4 and height == width:  # crops are square
        crop = evaluation_views(subject, dataset, cfg.views, cfg.seed)
        chosen = train.subset(_spread(len(train), cfg.view_images))
        views, view_y = extract_view_features(spaces, chosen, crop, batch_size=max(1, cfg.batch_size // cfg.views))
    if not distributed.is_main():
        distributed.barrier()
        return {}

    result: dict[str, Any] = {
        "model": subject.name,
        "dataset": dataset,
        "evaluated_on": where,
        "train_images": len(train),
        "test_images": len(test),
        "processes": distributed.world_size(),
        "convention": subject.config.get("convention", {}),
        "environment": describe(device),
        "scores": {n: frozen_scores(*a, *b) for n, (a, b) in features.items() if n != "projector"},
        "geometry": {
            n: _geometry(b, views[n] if views else None, view_y, train.classes) for n, (_, b) in features.items()
        },
        "layers": {},
    }
    figures: dict[str, tuple[Any, str]] = {
        "Spectrum": (
            spectrum_figure({n: singular_values(b[0]) for n, (_, b) in features.items()}),
            f"Singular values of the uncentred features of {len(test)} images, over the largest; widths in brackets.",
        )
    }
    figures |= _look_inside(cfg, subject, test, result)
    _write(cfg, subject, folder, dataset, result, figures)
    distributed.barrier()
    return result


def _open(cfg: EvaluateConfig, dataset: str, own: dict[str, Any]) -> tuple[Images, Images, str]:
    """Train, test (readable images) and what test is; without a test split the held-out tenth of train."""
    keys: dict[str, Any] = {
        "input_key": cfg.input_key or own.get("input_key"),
        "target_key": cfg.target_key or own.get("target_key"),
        "max_pixels": cfg.max_pixels or own.get("max_pixels"),
        "sample_range": cfg.sample_range or own.get("sample_range"),
    }
    keys |= {"root": cfg.data_dir or own.get("data_dir"), "download": cfg.dataset_download}
    train = load_images(dataset, "train", num_samples=cfg.num_samples, seed=own.get("seed", cfg.seed), **keys)
    test, where = if_there(lambda: load_images(dataset, "test", classes=train.classes, **keys)), "test"
    if test is None:
        if cfg.num_samples is None and own.get("num_samples"):  # the tenth that the run held out, which it never saw
            train = load_images(dataset, "train", num_samples=own["num_samples"], seed=own["seed"], **keys)
        train, test = hold_out(train)
        where = "a held-out tenth of train"
    return only_readable(train), only_readable(test), where


def _geometry(test: Features, views: Tensor | None, view_y: Tensor | None, classes: tuple[str, ...]) -> dict[str, Any]:
    z, y = test
    chosen = _spread(len(z), _RETRIEVAL)
    found = retrieval(z[chosen], y[chosen])
    row: dict[str, Any] = {
        "width": z.shape[1],
        "rankme": rankme(z),
        "recall_at_1": found.recall_at_1,
        "mean_average_precision": found.mean_average_precision,
        "retrieval_queries": found.queries,
    }
    if views is not None and view_y is not None:
        row |= {"view_images": views.shape[1], "views": len(views), **view_cosines(views)._asdict()}
        try:
            thickness = augmentation_thickness(views, view_y)
        except ValueError as error:
            row["thickness_left_out"] = str(error)
        else:
            row |= {
                "separability": thickness.separability.mean().item(),
                "sensitivity": thickness.sensitivity.mean().item(),
                "thickness_rank": thickness.rank,
                "per_class": {
                    classes[int(label)]: {"separability": separability.item(), "sensitivity": sensitivity.item()}
                    for label, separability, sensitivity in zip(*thickness[:3], strict=True)
                },
            }
    return row


def _look_inside(
    cfg: EvaluateConfig, subject: Subject, test: Images, result: dict[str, Any]
) -> dict[str, tuple[Any, str]]:
    """Layer-wise rows into `result`; their figures."""
    model: Any = subject.model
    if not cfg.layer_images or not isinstance(model, UnrolledTransformer):
        return {}
    chosen = _spread(len(test), cfg.layer_images)
    loader = eval_loader(test, model, batch_size=len(chosen), indices=chosen)
    images = next(iter(loader))[0].to(next(model.parameters()).device)
    models = {"pretrained": model, "untrained": subject.untrained}
    rows = {
        name: {"curves": layer_curves(m, images), "theory_gap": theory_gap(m, images)}
        for name, m in models.items()
        if m is not None
    }
    result["layers"] = {"images": len(images), **rows}
    figure = layer_figure({name: [*part["curves"], *part["theory_gap"]] for name, part in rows.items()})
    caption = (
        f"Means over {len(images)} images. `layer_curves` and `theory_gap` (aotadmm_timm.evaluation) define the panels."
    )
    figures = {"Layer by layer": (figure, caption)}
    if has_subspaces(model.blocks[-1]) and images.shape[1] in (1, 3):
        few = images[:_PICTURES]
        data: Any = model.pretrained_cfg
        mean, std = (torch.tensor(data[key], device=few.device).view(-1, 1, 1) for key in ("mean", "std"))
        pictures = (few * std + mean).clamp(0, 1).expand(-1, 3, -1, -1)
        picture = map_figure(pictures.cpu(), attention_maps(model, few).cpu(), patch_pca(model, few).cpu())
        caption = (
            "Attention of the class token in the last layer, and three principal components of the patch features."
        )
        figures["Attention and patches"] = (picture, caption)
    return figures


def _write(
    cfg: EvaluateConfig,
    subject: Subject,
    folder: Path,
    dataset: str,
    result: dict[str, Any],
    figures: dict[str, tuple[Any, str]],
) -> None:
    stem = dataset.strip("./").replace("/", "-")
    write_text(folder / f"{stem}.json", to_json(result))
    for title, (figure, _) in figures.items():
        path = folder / f"{stem}_{title.lower().replace(' ', '_')}.png"
        figure.savefig(path.with_suffix(".part.png"), dpi=110)
        os.replace(path.with_suffix(".part.png"), path)
    where = result["evaluated_on"]
    counts = f"{result['train_images']} train images, {result['test_images']} test images"
    print(f"{subject.name} on {dataset}: {counts}{'' if where == 'test' else f' ({where})'}\n")
    print(format_table(result["scores"], where))
    print("\n" + align(_geometry_rows(result["geometry"])))
    print(f"\nresults: {folder / stem}.json")
    if cfg.report:
        page = (subject.run or folder) / "report.html"
        sections = dict(figures)
        if subject.run:
            sections = {
                "Training": (draw_curves(subject.run), "Loss terms, learning rate and probe over time."),
                **sections,
            }
        text = render_report(
            f"{Path(subject.name).name} on {dataset}",
            scores=score_rows(result["scores"]),
            note=f"Accuracy in per cent on {where}, n = {result['test_images']}; RankMe over the same images.",
            tables={"Geometry": _geometry_rows(result["geometry"])},
            sections=sections,
            config=subject.config,
            environment=result["environment"],
        )
        write_text(page, text)
        print(f"report: {page}")


def _geometry_rows(geometry: dict[str, dict[str, Any]]) -> list[list[str]]:
    columns = {
        "RankMe": "rankme",
        "recall@1": "recall_at_1",
        "mAP": "mean_average_precision",
        "cos same image": "same_image",
        "cos different": "different_image",
        "separability": "separability",
        "view sensitivity": "sensitivity",
    }
    rows = [["space", "width", *columns]]
    for name, row in geometry.items():
        values = [row.get(key) for key in columns.values()]
        rows.append(
            [
                name,
                str(row["width"]),
                *("-" if v is None else f"{v:.1f}" if i == 0 else f"{v:.3f}" for i, v in enumerate(values)),
            ]
        )
    return rows


def _spread(count: int, limit: int) -> list[int]:
    """At most `limit` of 0 .. count - 1, evenly spread: sorted data sets give every class."""
    return torch.linspace(0, count - 1, min(count, limit)).round().long().tolist()
