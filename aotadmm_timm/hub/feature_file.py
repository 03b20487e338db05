"""The file of features: parquet or safetensors, written and read in blocks, never with all rows in memory."""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from aotadmm_timm.errors import UserError

SUFFIXES = (".parquet", ".safetensors")
_KEY = "aotadmm_timm"
_LARGEST_HEADER = 100_000_000  # of the safetensors format
_READ_ROWS = 4096


@dataclass(frozen=True)
class Layout:
    """What all rows share.

    Attributes:
        rows: their number.
        shape: of one row's features.
        dtype: float32 or float16.
        labelled: whether there is a label column.
        mean: what was subtracted from every row, (*shape) float32, or None.
        metadata: JSON values; model, preprocessing, `classes`, `failed` (path -> reason).
    """

    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype
    labelled: bool
    mean: np.ndarray | None
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Consecutive rows: paths, labels (n,) with -1 for unknown or None, features (n, *shape)."""

    paths: list[str]
    labels: np.ndarray | None
    features: np.ndarray


@dataclass(frozen=True)
class Features:
    """A whole file in memory; `features` (N, *shape), `mean` (*shape) or None: subtract it from a query too."""

    paths: list[str]
    labels: np.ndarray | None
    features: np.ndarray
    mean: np.ndarray | None
    metadata: dict[str, Any]


def check_suffix(path: Path) -> None:
    """Refuse a file that could not be written: an unknown suffix, or parquet without pyarrow."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: the suffix picks the format; expected {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _pyarrow()


def write_features(path: Path, layout: Layout, blocks: Iterable[Block]) -> None:
    """Write to a temporary name beside `path` and rename. `blocks` must hold `layout.rows` rows in total."""
    aside = path.with_name(path.name + ".part")
    try:
        (_write_parquet if path.suffix == ".parquet" else _write_safetensors)(aside, layout, blocks)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_features(path: str | Path) -> Features:
    """Read a file of features written by `hub/extract.py`. Raises UserError if it is damaged or something else."""
    layout = read_layout(Path(path))
    blocks = list(iterate(Path(path)))
    paths = [name for block in blocks for name in block.paths]
    features = np.concatenate([np.empty((0, *layout.shape), layout.dtype), *(block.features for block in blocks)])
    labels = None
    if layout.labelled:
        labels = np.concatenate([np.empty(0, np.int64), *(b.labels for b in blocks if b.labels is not None)])
    return Features(paths, labels, features, layout.mean, layout.metadata)


def read_layout(path: Path) -> Layout:
    """Everything but the rows."""
    check_suffix(path)
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        try:
            schema = parquet.read_schema(path)
            rows = parquet.read_metadata(path).num_rows
            stored = json.loads((schema.metadata or {})[_KEY.encode()])
        except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise UserError(f"{path}: not a feature file: {_line(error)}") from error
        dtype, labelled = np.dtype(schema.field("feature").type.value_type.to_pandas_dtype()), "label" in schema.names
    else:
        try:
            with safe_open(path, framework="np") as file:
                stored = json.loads(file.metadata()[_KEY])
                tensor = file.get_slice("feature")
                rows, dtype = tensor.get_shape()[0], np.dtype({"F32": "f4", "F16": "f2"}[tensor.get_dtype()])
                labelled = "label" in file.keys()  # noqa: SIM118  (not a mapping)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not a feature file: {_line(error)}") from error
    metadata = dict(stored)
    mean, shape = metadata.pop("mean", None), tuple(metadata["shape"])
    return Layout(rows, shape, dtype, labelled, None if mean is None else np.asarray(mean, np.float32), metadata)


def iterate(path: Path) -> Iterator[Block]:
    """The rows in order, a few thousand at a time."""
    layout = read_layout(path)
    if path.suffix == ".parquet":
        _, parquet = _pyarrow()
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_READ_ROWS):
                flat = batch.column("feature").flatten().to_numpy(zero_copy_only=False)
                labels = None
                if layout.labelled:
                    labels = batch.column("label").fill_null(-1).to_numpy(zero_copy_only=False)
                yield Block(batch.column("path").to_pylist(), labels, flat.reshape(batch.num_rows, *layout.shape))
        return
    with safe_open(path, framework="np") as file:
        paths, tensor = json.loads(file.metadata()["path"]), file.get_slice("feature")
        for start in range(0, layout.rows, _READ_ROWS):
            stop = min(start + _READ_ROWS, layout.rows)
            labels = file.get_slice("label")[start:stop] if layout.labelled else None
            yield Block(paths[start:stop], labels, tensor[start:stop])


def _stored(layout: Layout) -> str:
    mean = {} if layout.mean is None else {"mean": layout.mean.astype(np.float64).tolist()}
    return json.dumps({**layout.metadata, "shape": list(layout.shape), **mean}, ensure_ascii=False)


def _write_parquet(path: Path, layout: Layout, blocks: Iterable[Block]) -> None:
    arrow, parquet = _pyarrow()
    width = int(np.prod(layout.shape))
    fields = [("path", arrow.string())]
    fields += [("label", arrow.int64())] if layout.labelled else []
    fields += [("feature", arrow.list_(arrow.from_numpy_dtype(layout.dtype), width))]
    schema = arrow.schema(fields, metadata={_KEY: _stored(layout)})
    with parquet.ParquetWriter(path, schema) as writer:
        for block in blocks:
            columns = [arrow.array(block.paths, arrow.string())]
            if layout.labelled:
                assert block.labels is not None
                columns.append(arrow.array(block.labels, mask=block.labels < 0))
            values = arrow.array(np.ascontiguousarray(block.features, layout.dtype).reshape(-1))
            columns.append(arrow.FixedSizeListArray.from_arrays(values, width))
            writer.write_batch(arrow.record_batch(columns, schema=schema))


def _write_safetensors(path: Path, layout: Layout, blocks: Iterable[Block]) -> None:
    """The format by hand (8 bytes of length, a JSON header, the data): the library writes only what is in memory.

    Paths and labels follow the rows, so they are gathered first in a list of plain strings; the header comes last and
    is put in front when the file is complete.
    """
    rows = path.with_name(path.name + ".rows")
    paths: list[str] = []
    labels: list[np.ndarray] = []
    try:
        with rows.open("wb") as data:
            for block in blocks:
                paths += block.paths
                labels += [block.labels] if block.labels is not None else []
                data.write(np.ascontiguousarray(block.features, layout.dtype).tobytes())
            size = data.tell()
        count, start = len(paths), 8 * len(paths) if layout.labelled else 0
        kind = {"float32": "F32", "float16": "F16"}[layout.dtype.name]
        header: dict[str, Any] = {
            "__metadata__": {"format": "np", _KEY: _stored(layout), "path": json.dumps(paths, ensure_ascii=False)},
            "feature": {"dtype": kind, "shape": [count, *layout.shape], "data_offsets": [start, start + size]},
        }
        if layout.labelled:  # first, so that both tensors stay aligned
            header["label"] = {"dtype": "I64", "shape": [count], "data_offsets": [0, start]}
        encoded = json.dumps(header, ensure_ascii=False).encode()
        encoded += b" " * (-len(encoded) % 8)
        if len(encoded) > _LARGEST_HEADER:
            raise UserError(f"{path}: the names of {len(paths):,} images do not fit into safetensors; use .parquet")
        with path.open("wb") as out, rows.open("rb") as data:
            out.write(struct.pack("<Q", len(encoded)) + encoded)
            if layout.labelled:
                out.write(np.concatenate([np.empty(0, np.int64), *labels]).astype("<i8").tobytes())
            while chunk := data.read(1 << 22):
                out.write(chunk)
    finally:
        rows.unlink(missing_ok=True)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("parquet needs pyarrow: pip install 'aotadmm_timm[train]', or write .safetensors") from None
    return pyarrow, pyarrow.parquet


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
