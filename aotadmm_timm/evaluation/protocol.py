"""Everything that frozen features are asked: scores, geometry, views, layers; and transfer over many data sets."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aotadmm_timm import distributed
from aotadmm_timm.data import Images, hold_out, if_there, load_images, only_readable
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.features import evenly_spread
from aotadmm_timm.evaluation.geometry import geometry
from aotadmm_timm.evaluation.inside import look_inside
from aotadmm_timm.evaluation.plots import spectrum_figure
from aotadmm_timm.evaluation.results import Figures, write_results
from aotadmm_timm.evaluation.scores import Features, both_features
from aotadmm_timm.evaluation.spectrum import singular_values
from aotadmm_timm.evaluation.subject import Subject, evaluation_views, load_subject
from aotadmm_timm.evaluation.summary import frozen_scores
from aotadmm_timm.evaluation.transfer import transfer
from aotadmm_timm.evaluation.transfer_datasets import TRANSFER
from aotadmm_timm.evaluation.view_features import extract_view_features
from aotadmm_timm.options import EvaluateConfig
from aotadmm_timm.runs.environment import describe


def evaluate(cfg: EvaluateConfig) -> dict[str, Any]:
    """Evaluate and write the results; returns what the JSON file holds (on rank 0, elsewhere an empty mapping).

    What needs labels (kNN, probes, retrieval, thickness) is left out, aloud, where not all images have one.
    """
    assert cfg.run_or_model is not None
    device = distributed.init_distributed(cfg.device)
    subject = load_subject(cfg.run_or_model, device, random_init=cfg.random_init, plugin=cfg.import_)
    if not cfg.baseline:
        subject.untrained = None
    folder = Path(cfg.output) if cfg.output else _default_folder(subject)
    if not cfg.transfer:
        return _on_one(cfg, subject, folder, device)
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


def _on_one(cfg: EvaluateConfig, subject: Subject, folder: Path, device: torch.device) -> dict[str, Any]:
    """The evaluation on one data set."""
    dataset = cfg.dataset or subject.config.get("dataset")
    if dataset is None:
        raise UserError(f"--dataset is needed: {subject.name} is not a run that names one")
    data = open_splits(cfg, dataset, subject.config if dataset == subject.config.get("dataset") else {})
    # All that needs every process comes first; rank 0 then computes alone, and nobody waits for it.
    features, views, view_y = _extract(cfg, subject, data, dataset)
    if not distributed.is_main():
        return {}
    result: dict[str, Any] = {
        "model": subject.name,
        "dataset": dataset,
        "evaluated_on": data.where,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "has_labels": data.has_labels,
        "processes": distributed.world_size(),
        "convention": subject.config.get("convention", {}),
        "environment": describe(device),
        "scores": {},
        "geometry": {},
        "layers": {},
    }
    for name, (bank, query) in features.items():
        if data.has_labels and name != "projector":
            result["scores"][name] = frozen_scores(*bank, *query)
        labels, classes = (query[1], data.train.classes) if data.has_labels else (None, ())
        seen = views[name] if views else None
        result["geometry"][name] = geometry(query[0], labels, seen, view_y if data.has_labels else None, classes)
    figures: Figures = {
        "Spectrum": (
            spectrum_figure({name: singular_values(query[0]) for name, (_, query) in features.items()}),
            f"Singular values of the uncentered features of {len(data.test)} images, over the largest; widths in "
            "brackets.",
        )
    }
    result["layers"], inside = look_inside(subject, data.test, cfg.layer_images)
    write_results(subject, folder, result, figures | inside, report=cfg.report)
    return result


def _extract(
    cfg: EvaluateConfig, subject: Subject, data: "Splits", dataset: str
) -> tuple[dict[str, tuple[Features, Features]], dict[str, Tensor] | None, Tensor | None]:
    """Features of train and test by space; of augmented views (V, N, d) by space, and their labels, if asked for."""
    models = {"pretrained": subject.model, "untrained": subject.untrained, "projector": subject.projected}
    spaces = {name: model for name, model in models.items() if model is not None}
    features = {
        name: both_features(
            data.train, data.test, model, subject.model, num_workers=cfg.num_workers, batch_size=cfg.batch_size
        )
        for name, model in spaces.items()
    }
    height, width = subject.image_size
    if not cfg.views or len(data.train) < 4 or height != width:  # crops are square
        return features, None, None
    crop = evaluation_views(subject, dataset, cfg.views, cfg.seed)
    chosen = data.train.subset(evenly_spread(len(data.train), cfg.view_images))
    views, labels = extract_view_features(spaces, chosen, crop, batch_size=max(1, cfg.batch_size // cfg.views))
    return features, views, labels


class Splits(NamedTuple):
    """Readable images of train and test, and what test is."""

    train: Images
    test: Images
    where: str

    @property
    def has_labels(self) -> bool:
        return self.train.has_labels and self.test.has_labels


def open_splits(cfg: EvaluateConfig, dataset: str, own: dict[str, Any]) -> Splits:
    """The data of an evaluation; without a test split the held-out tenth of train.

    Args:
        own: the configuration of the run that is evaluated, if it was trained on this data set.
    """
    keys: dict[str, Any] = {
        "input_key": cfg.input_key or own.get("input_key"),
        "target_key": cfg.target_key or own.get("target_key"),
        "root": cfg.data_dir or own.get("data_dir"),
        "download": cfg.dataset_download,
        "max_pixels": cfg.max_pixels or own.get("max_pixels"),
        "sample_range": cfg.sample_range or own.get("sample_range"),
    }

    def train_of(num_samples: int | None) -> Images:
        part = {"num_samples": num_samples, "seed": own.get("seed", cfg.seed)}
        images = load_images(dataset, "train", labels=False, **part, **keys)
        some = not images.has_labels and bool((images.labels >= 0).any())
        return load_images(dataset, "train", **part, **keys) if some else images  # those without one are left out

    train = train_of(cfg.num_samples)
    like: dict[str, Any] = {"classes": train.classes or None, "labels": train.has_labels}
    test = if_there(lambda: load_images(dataset, "test", **like, **keys))
    if test is not None:
        return Splits(only_readable(train), only_readable(test), "test")
    if cfg.num_samples is None and own.get("num_samples"):  # the tenth that the run held out, which it never saw
        train = train_of(own["num_samples"])
    train, test = hold_out(train)
    return Splits(only_readable(train), only_readable(test), "a held-out tenth of train")
