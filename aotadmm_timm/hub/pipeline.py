"""From images to one file of features: resumable, over all ranks of torchrun, in memory that does not grow with N."""

import hashlib
import heapq
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError
from aotadmm_timm.extractor import FeatureExtractor, finish

from .feature_file import Block, Layout, check_suffix, iterate, read_layout, write_features
from .images import ImageSource
from .parts import Part, Parts

_PARTS = 64  # at least so many, if batches allow: ranks finish together
_PART_ROWS = 1024  # lost at most, by each rank, when a run is killed
_PART_BYTES = 32 << 20
_BLOCK_ROWS = 4096
_SECONDS_BETWEEN_REPORTS = 10.0

Row = tuple[int, np.ndarray]  # index into the source, features


@dataclass(frozen=True)
class Report:
    """What an extraction did: rows in the file, rows computed in this call, and path -> reason of every failure."""

    rows: int
    computed: int
    failed: dict[str, str]


def extract_file(
    source: ImageSource,
    out: Path,
    extractor: FeatureExtractor,
    *,
    normalize: bool = False,
    center: bool = False,
    fp16: bool = False,
    update: bool = False,
    workers: int = 0,
) -> Report:
    """Write the features of every image of `source` to `out`, one row per image in the source's order.

    An image that does not decode, or whose features are not finite, has no row; it is listed as failed, in the report
    and in the file. All ranks of a process group take part; rank 0 writes `out`.

    Args:
        out: .parquet or .safetensors; must not exist, unless `update`.
        normalize: scale features to length 1 (after centring).
        center: subtract the mean over all rows, which is stored in the file.
        fp16: store float16.
        update: keep the rows of an existing `out`; compute only images that are new, changed since, or failed before.
            Images that are gone lose their rows. The stored mean stays, so that old and new rows remain comparable.
            A file has changed if it was written, or put in its place, after `out`'s images were listed, whatever its
            modification time says; a data set's images are known by id.
        workers: processes that decode images.
    Raises: UserError if `out` exists, belongs to other settings, or cannot be written in its format.
    """
    check_suffix(out)
    settings = {**extractor.describe(), "normalize": normalize, "center": center, "fp16": fp16}
    previous = None
    if out.exists():
        if not update:
            raise UserError(f"{out} exists already: --update adds what is new; or remove it")
        previous = read_layout(out)
        _check_same(out, previous, settings)
    kept = _kept_rows(source, out, previous.metadata["listed_ns"]) if previous else {}
    kept_indices = set(kept.values())
    pending = np.array([index for index in range(len(source)) if index not in kept_indices], np.int64)

    batch_size = extractor.batch_size
    row_bytes = 4 * int(np.prod(extractor.shape))
    rows = batch_size * max(1, min(len(pending) // _PARTS, _PART_ROWS, _PART_BYTES // row_bytes) // batch_size)
    pieces = [pending[start : start + rows] for start in range(0, len(pending), rows)]
    work = {"images": source.digest(), "rows": rows, "pending": hashlib.sha256(pending.tobytes()).hexdigest()}
    parts = Parts(out.with_name(out.name + ".parts"), {**extractor.describe(), **work}, len(pieces))
    if distributed.is_main() and (done := parts.start()):
        _say(f"resuming: {done} of {len(pieces)} parts are done")
    distributed.barrier()
    mine = [number for number in range(len(pieces)) if number % distributed.world_size() == distributed.rank()]
    missing = [number for number in mine if not parts.is_done(number)]
    _compute(source, extractor, parts, {number: pieces[number] for number in missing}, workers)
    distributed.barrier()

    failed = {source.ids[index]: reason for index, reason in sorted(parts.failures().items())}
    report = Report(len(source) - len(failed), len(pending), failed)
    distributed.barrier()  # nobody reads the parts any more when rank 0 removes them
    if distributed.is_main():
        mean = (previous.mean if previous else _mean(parts, extractor.shape)) if center else None
        layout = Layout(
            rows=report.rows,
            shape=extractor.shape,
            dtype=np.dtype(np.float16 if fp16 else np.float32),
            labelled=source.labels is not None,
            mean=mean,
            metadata={**settings, "listed_ns": source.listed_ns, "classes": list(source.classes), "failed": failed},
        )
        new = ((i, finish(row, mean, normalize=normalize)) for part in parts for i, row in _rows(part))
        old = _old_rows(out, kept) if previous else iter(())
        write_features(out, layout, _blocks(source, layout, heapq.merge(old, new, key=lambda row: row[0])))
        parts.remove()
    distributed.barrier()
    return report


def _compute(
    source: ImageSource, extractor: FeatureExtractor, parts: Parts, pieces: dict[int, np.ndarray], workers: int
) -> None:
    """Embed the images of `pieces` and write each piece as soon as it is complete."""
    size = extractor.batch_size
    batches = [(n, piece[start : start + size]) for n, piece in pieces.items() for start in range(0, len(piece), size)]
    loader = DataLoader(
        _Decoded(source, extractor),
        batch_sampler=[batch.tolist() for _, batch in batches],
        collate_fn=_collate,
        num_workers=workers,
        pin_memory=extractor.device.type == "cuda",
    )
    total, done, began = sum(map(len, pieces.values())), 0, time.monotonic()
    reported = began
    no_rows = np.empty(0, np.int64), np.empty((0, *extractor.shape), np.float32)
    indices, features, failed = [no_rows[0]], [no_rows[1]], dict[int, str]()
    for position, ((number, batch), (good, images, bad, largest)) in enumerate(zip(batches, loader, strict=True)):
        extractor.warn_if_large(*largest)
        failed |= bad
        if len(good):
            values = extractor.embed(images).numpy()
            finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            failed |= {int(index): "its features are not finite" for index in good[~finite]}
            indices.append(good[finite])
            features.append(values[finite])
        if position + 1 == len(batches) or batches[position + 1][0] != number:
            parts.write(number, Part(np.concatenate(indices), np.concatenate(features), failed))
            indices, features, failed = [no_rows[0]], [no_rows[1]], {}
        done += len(batch)
        if distributed.is_main() and time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            _say(f"{done:,} of {total:,} images, {done / (reported - began):.0f} images/s")


class _Decoded(Dataset):
    """Item i is (i, model input or None, reason of a failure, (width, height))."""

    def __init__(self, source: ImageSource, extractor: FeatureExtractor) -> None:
        # not the extractor itself: workers that are spawned would get the model, too
        self.source, self.transform, self.gray = source, extractor.transform, extractor.channels == 1

    def __getitem__(self, index: int) -> tuple[int, Tensor | None, str, tuple[int, int]]:
        try:
            image = self.source.read(index)
        except (UserError, OSError) as error:
            return index, None, getattr(error, "reason", str(error)), (0, 0)
        return index, self.transform(image.convert("L") if self.gray else image), "", image.size


Batch = tuple[np.ndarray, Tensor, dict[int, str], tuple[int, int]]


def _collate(items: Sequence[tuple[int, Tensor | None, str, tuple[int, int]]]) -> Batch:
    """Indices and inputs of the images that decoded, the failures, and the size of the largest image."""
    good = np.array([index for index, image, _, _ in items if image is not None], np.int64)
    images = [image for _, image, _, _ in items if image is not None]
    bad = {index: reason for index, image, reason, _ in items if image is None}
    return good, torch.stack(images) if images else torch.empty(0), bad, max((size for *_, size in items), key=min)


def _check_same(out: Path, previous: Layout, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if key != "versions" and previous.metadata.get(key) != value:
            raise UserError(
                f"{out} was made with {key} {previous.metadata.get(key)!r}, not {value!r}; nothing is added"
            )


def _kept_rows(source: ImageSource, out: Path, listed_ns: int) -> dict[str, int]:
    """Path -> index of the images whose rows in `out` still hold: there, and as they were when listed for it."""
    index_of = {name: index for index, name in enumerate(source.ids)}
    kept: dict[str, int] = {}
    for block in iterate(out):
        for name in block.paths:
            index = index_of.get(name)
            if index is not None and ((stamp := source.stamp(index)) is None or 0 <= stamp[1] < listed_ns):
                kept[name] = index
    return kept


def _old_rows(out: Path, kept: dict[str, int]) -> Iterator[Row]:
    last = -1
    for block in iterate(out):
        for name, row in zip(block.paths, block.features, strict=True):
            if (index := kept.get(name)) is not None:
                if index <= last:
                    raise UserError(f"{out}: its rows are in another order than the images now; extract anew")
                last = index
                yield index, row


def _rows(part: Part) -> Iterator[Row]:
    return zip(part.indices.tolist(), part.features, strict=True)


def _mean(parts: Parts, shape: tuple[int, ...]) -> np.ndarray:
    """Mean over all rows, accumulated in float64 one part at a time."""
    total, count = np.zeros(shape, np.float64), 0
    for part in parts:
        total += part.features.sum(axis=0, dtype=np.float64)
        count += len(part.features)
    return (total / max(count, 1)).astype(np.float32)


def _blocks(source: ImageSource, layout: Layout, rows: Iterable[Row]) -> Iterator[Block]:
    """Rows gathered into blocks of the stored type."""
    limit = max(1, min(_BLOCK_ROWS, _PART_BYTES // (4 * int(np.prod(layout.shape)))))
    indices: list[int] = []
    features: list[np.ndarray] = []

    def block() -> Block:
        with np.errstate(over="ignore"):
            values = np.stack(features).astype(layout.dtype)
        if not np.isfinite(values).all():
            raise UserError("features are too large for float16; leave --fp16 away or add --normalize")
        labels = None if source.labels is None else source.labels[indices]
        return Block([source.ids[index] for index in indices], labels, values)

    for index, row in rows:
        indices.append(index)
        features.append(row)
        if len(indices) == limit:
            yield block()
            indices, features = [], []
    if indices:
        yield block()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
