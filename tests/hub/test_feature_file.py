"""Both formats hold the same rows, and other readers understand them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file

from aotadmm_timm.hub.feature_file import Block, Layout, check_suffix, iterate, read_features, write_features


def written(
    path: Path, *, rows: int = 9000, dtype: str = "float32", labelled: bool = True, mean: bool = True
) -> Layout:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 2, 3)).astype(dtype)
    labels = rng.integers(-1, 4, rows) if labelled else None
    paths = [f"ordner ü/写真 {i}.png" for i in range(rows)]
    center = rng.normal(size=(2, 3)).astype(np.float32) if mean else None
    layout = Layout(rows, (2, 3), np.dtype(dtype), labelled, center, {"model": "m"})
    cuts = range(0, rows, 1000)
    labels_of = [None if labels is None else labels[c : c + 1000] for c in cuts]
    blocks = [Block(paths[c : c + 1000], each, features[c : c + 1000]) for c, each in zip(cuts, labels_of, strict=True)]
    write_features(path, layout, blocks)
    back = read_features(path)
    assert back.paths == paths
    np.testing.assert_array_equal(back.features, features)
    assert back.features.dtype == np.dtype(dtype)
    assert (back.labels is None) == (labels is None)
    if labels is not None:
        np.testing.assert_array_equal(back.labels, labels)
    if layout.mean is not None:
        np.testing.assert_array_equal(back.mean, layout.mean)
    assert back.metadata["model"] == "m"
    assert all(len(block.paths) <= 4096 for block in iterate(path))
    assert list(path.parent.iterdir()) == [path]
    return layout


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float16"}, {"labelled": False, "mean": False}, {"rows": 0}, {"rows": 1}], ids=str
)
def test_rows_labels_mean_and_metadata_come_back(suffix: str, options: dict[str, object], tmp_path: Path) -> None:
    written(tmp_path / f"out{suffix}", **options)


def test_parquet_has_the_columns_that_others_expect(tmp_path: Path) -> None:
    written(tmp_path / "out.parquet", rows=10)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["path", "label", "feature"]
    assert str(table.schema.field("feature").type) == "fixed_size_list<element: float>[6]"
    assert table.column("label").null_count > 0  # unknown, not -1


def test_safetensors_loads_with_the_library(tmp_path: Path) -> None:
    written(tmp_path / "out.safetensors", rows=7, dtype="float16")
    tensors = load_file(tmp_path / "out.safetensors")
    assert tensors["feature"].shape == (7, 2, 3)
    assert tensors["label"].dtype == np.int64


def test_what_is_no_feature_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"out\.csv: the suffix picks the format"):
        check_suffix(tmp_path / "out.csv")
    for suffix in (".parquet", ".safetensors"):
        path = tmp_path / f"bad{suffix}"
        path.write_bytes(b"something else, long enough to hold a header")
        with pytest.raises(ValueError, match=f"bad{suffix}: not a feature file"):
            read_features(path)
