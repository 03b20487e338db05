"""Frozen-feature scores around a pretraining: the probe over time, and the table at the end."""

import logging
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from aotadmm_timm import distributed
from aotadmm_timm.data import Images, eval_loader, held_out_split, hold_out, only_readable
from aotadmm_timm.evaluation.features import extract_features
from aotadmm_timm.evaluation.knn import knn_accuracy
from aotadmm_timm.evaluation.summary import frozen_scores

logger = logging.getLogger(__name__)


class HeldOutProbe:
    """kNN accuracy on a fixed held-out tenth of train (labels held out; the images themselves are trained on)."""

    LIMIT = 5000  # images of each part: a probe is a glance, not a result

    def __init__(self, train: Images, encoder: nn.Module, *, num_workers: int = 0) -> None:
        rng = np.random.default_rng(0)
        parts = [np.sort(rng.permutation(part)[: self.LIMIT]) for part in held_out_split(train.labels)]
        self.bank, self.held = (only_readable(train.subset(part)) for part in parts)
        self.encoder, self.num_workers = encoder, num_workers

    def __call__(self) -> dict[str, float]:
        """{"offline_knn20": fraction} on rank 0, nothing on others or if no image can be held out."""
        if not len(self.held) or not len(self.bank):
            return {}
        bank, held = (
            extract_features(self.encoder, eval_loader(part, self.encoder, num_workers=self.num_workers))
            for part in (self.bank, self.held)
        )
        return {"offline_knn20": knn_accuracy(*bank, *held, k=20)} if distributed.is_main() else {}


class Pixels(nn.Module):
    """The pixels themselves as features, from images over 32x32 the means of a 32x32 grid: 3,072 numbers at most.

    A probe on all the pixels of a 224x224 image would fit 150,528 weights per class, and hold that many per image.
    """

    SIDE = 32

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C min(H, 32) min(W, 32))"""
        size = min(x.shape[-2], self.SIDE), min(x.shape[-1], self.SIDE)
        return F.adaptive_avg_pool2d(x, size).flatten(1)


def final_scores(
    train: Images,
    test: Images | None,
    encoder: nn.Module,
    untrained: nn.Module,
    *,
    num_workers: int = 0,
) -> dict[str, Any]:
    """Scores of the trained encoder, of the same one untrained, and of raw pixels, on rank 0; {} on others.

    Test is read here, once. Without a test set the held-out tenth of train takes its place.
    """
    where = "test"
    if test is None:
        train, test = hold_out(train)
        where = "held-out tenth of train"
    train, test = only_readable(train), only_readable(test)
    models: dict[str, nn.Module] = {"pretrained": encoder, "untrained": untrained, "pixels": Pixels()}
    # Every rank takes its share of all features first: none waits for the others while rank 0 scores.
    features = {key: both_features(train, test, model, encoder, num_workers) for key, model in models.items()}
    if not distributed.is_main():
        return {}
    return {"evaluated_on": where, **{key: frozen_scores(*bank, *query) for key, (bank, query) in features.items()}}


Features = tuple[Tensor, Tensor]


def both_features(
    train: Images, test: Images, model: nn.Module, like: nn.Module, num_workers: int = 0, batch_size: int = 256
) -> tuple[Features, Features]:
    """What `model` makes of images that are preprocessed as the timm model `like` wants them, with their labels."""
    bank, query = (
        extract_features(model, eval_loader(images, like, batch_size=batch_size, num_workers=num_workers))
        for images in (train, test)
    )
    return bank, query


def model_scores(
    train: Images, test: Images, model: nn.Module, like: nn.Module, num_workers: int = 0
) -> dict[str, float]:
    """`frozen_scores` of `both_features`."""
    bank, query = both_features(train, test, model, like, num_workers)
    return frozen_scores(*bank, *query)
