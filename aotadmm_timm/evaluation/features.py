"""Frozen features of a data set, exact however many processes share the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluating import evaluating


def extract_features(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pooled features and labels of every image of `loader`, in its order, on the CPU.

    A timm model gives its pre-logits features, also when it still carries a classifier; any other module its output.
    The model runs in eval mode on the device of its parameters, in its own precision; every submodule's own mode is
    restored.

    Under torch.distributed each process computes every world_size-th *batch* and all processes return the whole result:
    batches are the ones of a single process, nothing is padded or repeated, so features do not depend on the number of
    processes. A DataLoader then reads only its own share; any other iterable is read in full by each process.

    Args:
        model: images (B, C, H, W) -> features (B, d).
        loader: yields (images, labels (B,)), in the same order on every process: there, one that shuffles is refused.
    Returns: features (N, d) float32, labels (N,) int64.
    Raises: ValueError if there is no image, if features are not (B, d) and finite, if labels do not match.
    """
    rank, world = distributed.rank(), distributed.world_size()
    batches, failure = {}, None
    with evaluating(model):
        try:
            for index, images, labels in _own_batches(loader, rank, world):
                batches[index] = _forward(model, images), _as_labels(labels, len(images))
        except UserError as error:  # the other processes wait below: let all of them see it
            if world == 1:
                raise
            failure = str(error)
    if world > 1:
        shares = distributed.all_gather_objects((batches, failure))
        failures = [message for _, message in shares if message]
        if failures:
            raise UserError(failures[0])
        batches = {index: batch for share, _ in shares for index, batch in share.items()}
    if not batches:
        raise UserError("the loader holds no image: nothing to extract features from")
    ordered = [batches[index] for index in sorted(batches)]
    return torch.cat([z for z, _ in ordered]), torch.cat([y for _, y in ordered])


def _own_batches(
    loader: Iterable[tuple[Tensor, Tensor]], rank: int, world: int
) -> Iterable[tuple[int, Tensor, Tensor]]:
    """(index in the whole loader, images, labels) of the batches this process computes."""
    if world > 1 and isinstance(loader, DataLoader) and loader.batch_sampler is not None:
        if not isinstance(loader.sampler, SequentialSampler):
            raise ValueError(f"a sharded loader must read in order, got a {type(loader.sampler).__name__}")
        own = DataLoader(
            loader.dataset,
            batch_sampler=list(loader.batch_sampler)[rank::world],
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
        )
        for position, (images, labels) in enumerate(own):
            yield rank + position * world, images, labels
        return
    for index, (images, labels) in enumerate(loader):
        if index % world == rank:
            yield index, images, labels


@torch.no_grad()
def _forward(model: Any, images: Tensor) -> Tensor:
    parameter = next(model.parameters(), None)
    if parameter is not None:
        images = images.to(device=parameter.device, dtype=parameter.dtype)
    if hasattr(model, "forward_features") and hasattr(model, "forward_head"):
        features = model.forward_head(model.forward_features(images), pre_logits=True)
    else:
        features = model(images)
    if features.ndim != 2 or len(features) != len(images):
        raise ValueError(f"features must be ({len(images)}, d), one row an image; got {tuple(features.shape)}")
    features = features.float().cpu()
    if not features.isfinite().all():
        raise UserError(
            f"{int((~features.isfinite()).any(1).sum())} of {len(features)} images have NaN or infinite features"
        )
    return features


def _as_labels(labels: Tensor, count: int) -> Tensor:
    labels = torch.as_tensor(labels).long().cpu()
    if labels.shape != (count,):
        raise ValueError(f"labels must be ({count},), one an image; got {tuple(labels.shape)}")
    return labels


def evenly_spread(count: int, limit: int) -> list[int]:
    """At most `limit` of 0 .. count - 1, evenly spread: sorted data sets give every class."""
    return torch.linspace(0, count - 1, min(count, limit)).round().long().tolist()
