"""Frozen-feature scores around a pretraining: the probe over time, and the table at the end."""

import logging
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from aotadmm_timm.data import Images, eval_loader, held_out_split, hold_out, only_readable
from aotadmm_timm.evaluation import extract_features, knn_accuracy
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
        """{"offline_knn20": fraction}, or nothing if no image can be held out."""
        if not len(self.held) or not len(self.bank):
            return {}
        bank, held = (
            extract_features(self.encoder, eval_loader(part, self.encoder, num_workers=self.num_workers))
            for part in (self.bank, self.held)
        )
        return {"offline_knn20": knn_accuracy(*bank, *held, k=20)}


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
    """Scores of the trained encoder, of the same one untrained, and of raw pixels. Test is read here, once.

    Without a test set the held-out tenth of train takes its place.
    """
    where = "test"
    if test is None:
        train, test = hold_out(train)
        where = "held-out tenth of train"
    train, test = only_readable(train), only_readable(test)
    scores: dict[str, Any] = {"evaluated_on": where}
    models: dict[str, nn.Module] = {"pretrained": encoder, "untrained": untrained, "pixels": Pixels()}
    return scores | {key: model_scores(train, test, model, encoder, num_workers) for key, model in models.items()}


def model_scores(
    train: Images, test: Images, model: nn.Module, like: nn.Module, num_workers: int = 0
) -> dict[str, float]:
    """`frozen_scores` of what `model` makes of images that are preprocessed as the timm model `like` wants them."""
    bank, query = (extract_features(model, eval_loader(x, like, num_workers=num_workers)) for x in (train, test))
    return frozen_scores(*bank, *query)
