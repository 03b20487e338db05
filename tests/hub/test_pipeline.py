"""Extraction of whole collections: one row per image or a named failure, whatever is killed, added or broken."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from scripts import run_script

from aotadmm_timm import FeatureExtractor
from aotadmm_timm.cli import run
from aotadmm_timm.hub import pipeline
from aotadmm_timm.hub.feature_file import read_features
from aotadmm_timm.hub.images import open_images
from aotadmm_timm.hub.pipeline import extract_file

ROOT = Path(__file__).parents[2]
Fill = Callable[..., Path]


def noise(seed: int, side: int = 36) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def tiny() -> FeatureExtractor:
    return FeatureExtractor("test_vit", random_init=True, batch_size=4)


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Writes numbered noise images into a folder of two classes."""

    def write(numbers: range, side: int = 36) -> Path:
        for i in numbers:
            path = tmp_path / "images" / "ab"[i % 2] / f"{i:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise(i, side).save(path)
        return tmp_path / "images"

    return write


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors"])
def test_one_row_per_image_in_order_and_every_failure_by_name(
    suffix: str, fill: Fill, tmp_path: Path, tiny: FeatureExtractor
) -> None:
    folder, out = fill(range(11)), tmp_path / f"out{suffix}"
    cut = (folder / "b" / "0001.png").read_bytes()
    (folder / "a" / "0005 cut.png").write_bytes(cut[: len(cut) // 2])
    (folder / "b" / "z.webp").write_bytes(b"")
    Image.new("1", (10_000, 9_000)).save(folder / "a" / "90 megapixels.png")
    noise(3).convert("CMYK").save(folder / "a" / "cmyk.jpg")
    noise(4).convert("L").save(folder / "a" / "grey ü 東.webp")
    report = extract_file(open_images(str(folder)), out, tiny)
    assert set(report.failed) == {"a/0005 cut.png", "a/90 megapixels.png", "b/z.webp"}
    assert report.rows == 13
    result = read_features(out)
    assert result.paths == sorted(result.paths)
    assert set(result.paths) | set(report.failed) == set(open_images(str(folder)).ids)
    expected = np.concatenate([tiny([folder / path]) for path in result.paths])  # each on its own: nobody's neighbour
    np.testing.assert_allclose(result.features, expected, atol=1e-5)
    assert result.labels is not None
    assert [result.metadata["classes"][label] for label in result.labels] == [path[0] for path in result.paths]
    assert result.metadata["failed"] == report.failed
    assert result.metadata["model"] == "test_vit"
    assert "Normalize(mean=" in result.metadata["preprocessing"]
    assert not out.with_name(out.name + ".parts").exists()


def test_all_images_failing_still_writes_the_list(tmp_path: Path, tiny: FeatureExtractor) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    report = extract_file(open_images(str(tmp_path / "images")), tmp_path / "out.parquet", tiny)
    assert report.rows == 0
    assert list(read_features(tmp_path / "out.parquet").metadata["failed"]) == ["a.png"]


def test_an_interrupted_extraction_continues_where_it_stopped(
    fill: Fill, tmp_path: Path, tiny: FeatureExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = fill(range(21)), tmp_path / "out.safetensors"
    embedded: list[int] = []
    embed = FeatureExtractor.embed

    def stop_after(limit: int) -> None:
        def counting(self: FeatureExtractor, batch: torch.Tensor) -> torch.Tensor:
            if sum(embedded) >= limit:
                raise KeyboardInterrupt
            embedded.append(len(batch))
            return embed(self, batch)

        monkeypatch.setattr(FeatureExtractor, "embed", counting)

    stop_after(12)
    with pytest.raises(KeyboardInterrupt):
        extract_file(open_images(str(folder)), out, tiny)
    assert not out.exists()
    parts = sorted(out.with_name(out.name + ".parts").glob("*.safetensors"))
    assert len(parts) == 3
    parts[0].write_bytes(parts[0].read_bytes()[:-8])  # as after a power cut
    embedded.clear()
    stop_after(10**6)
    extract_file(open_images(str(folder)), out, tiny)
    assert sum(embedded) == 21 - 8
    extract_file(open_images(str(folder)), tmp_path / "whole.safetensors", tiny)
    resumed, whole = read_features(out), read_features(tmp_path / "whole.safetensors")
    assert resumed.paths == whole.paths
    np.testing.assert_array_equal(resumed.features, whole.features)


def test_parts_of_other_images_or_settings_are_not_reused(
    fill: Fill, tmp_path: Path, tiny: FeatureExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = fill(range(9)), tmp_path / "out.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_features", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extract_file(open_images(str(folder)), out, tiny)
    noise(99).save(folder / "a" / "0000.png")  # the same name, another picture
    extract_file(open_images(str(folder)), out, tiny)
    np.testing.assert_allclose(read_features(out).features[0], tiny([noise(99)])[0], atol=1e-5)


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors"])
def test_update_embeds_new_changed_and_formerly_broken_images_only(
    suffix: str, fill: Fill, tmp_path: Path, tiny: FeatureExtractor
) -> None:
    folder, out = fill(range(2, 10)), tmp_path / f"out{suffix}"
    (folder / "a" / "0012.png").write_bytes(b"broken")
    extract_file(open_images(str(folder)), out, tiny, center=True, normalize=True)
    before = read_features(out)
    with pytest.raises(ValueError, match="--update"):
        extract_file(open_images(str(folder)), out, tiny, center=True, normalize=True)
    fill(range(0, 1))  # new, sorted first
    noise(12).save(folder / "a" / "0012.png")  # mended
    noise(55).save(folder / "b" / "0003.png")  # changed
    (folder / "a" / "0004.png").unlink()  # gone
    report = extract_file(open_images(str(folder)), out, tiny, center=True, normalize=True, update=True)
    assert report.computed == 3
    assert report.failed == {}
    after = read_features(out)
    assert after.paths == list(open_images(str(folder)).ids)
    np.testing.assert_array_equal(after.mean, before.mean)  # rows of both times are comparable
    for path, row in zip(after.paths, after.features, strict=True):
        raw = tiny([folder / path])[0] - after.mean
        np.testing.assert_allclose(row, raw / np.linalg.norm(raw), atol=1e-5)
    kept = after.paths.index("b/0005.png"), before.paths.index("b/0005.png")
    np.testing.assert_array_equal(after.features[kept[0]], before.features[kept[1]])
    assert extract_file(open_images(str(folder)), out, tiny, center=True, normalize=True, update=True).computed == 0
    with pytest.raises(ValueError, match="was made with normalize True, not False"):
        extract_file(open_images(str(folder)), out, tiny, center=True, update=True)


def test_update_sees_vanished_files_and_ones_replaced_by_older_ones(
    fill: Fill, tmp_path: Path, tiny: FeatureExtractor
) -> None:
    folder, out, listed = fill(range(4)), tmp_path / "out.parquet", tmp_path / "list.txt"
    listed.write_text("".join(f"images/{'ab'[i % 2]}/{i:04d}.png\n" for i in range(4)))
    extract_file(open_images(str(listed)), out, tiny)
    (folder / "a" / "0002.png").unlink()
    noise(77).save(tmp_path / "older.png")
    os.utime(tmp_path / "older.png", (1e9, 1e9))
    os.replace(tmp_path / "older.png", folder / "b" / "0003.png")
    report = extract_file(open_images(str(listed)), out, tiny, update=True)
    assert list(report.failed) == ["images/a/0002.png"]
    assert report.computed == 2
    result = read_features(out)
    assert result.paths == ["images/a/0000.png", "images/b/0001.png", "images/b/0003.png"]
    np.testing.assert_allclose(result.features[2], tiny([noise(77)])[0], atol=1e-5)


def test_features_too_large_for_half_precision_are_not_lost(
    fill: Fill, tmp_path: Path, tiny: FeatureExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, embed = open_images(str(fill(range(6)))), tmp_path / "out.parquet", FeatureExtractor.embed
    monkeypatch.setattr(FeatureExtractor, "embed", lambda self, batch: embed(self, batch) * 1e6)
    with pytest.raises(ValueError, match="too large for float16"):
        extract_file(source, out, tiny, fp16=True)
    assert [path.name for path in tmp_path.glob("out*")] == ["out.parquet.parts"]
    monkeypatch.setattr(FeatureExtractor, "embed", lambda self, batch: pytest.fail("was embedded already"))
    assert extract_file(source, out, tiny, fp16=True, normalize=True).rows == 6


def test_centring_normalising_and_half_precision(fill: Fill, tmp_path: Path, tiny: FeatureExtractor) -> None:
    source = open_images(str(fill(range(10))))
    out = tmp_path / "out.parquet"
    extract_file(source, out, tiny, center=True, normalize=True, fp16=True)
    result = read_features(out)
    raw = tiny([tmp_path / "images" / path for path in result.paths])
    assert result.mean is not None
    np.testing.assert_allclose(result.mean, raw.mean(0), atol=1e-5)
    expected = (raw - raw.mean(0)) / np.linalg.norm(raw - raw.mean(0), axis=1, keepdims=True)
    assert result.features.dtype == np.float16
    np.testing.assert_allclose(result.features, expected, atol=1e-3)


def test_features_that_are_not_finite_are_failures_not_rows(
    fill: Fill, tmp_path: Path, tiny: FeatureExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = FeatureExtractor.embed

    def broken(self: FeatureExtractor, batch: torch.Tensor) -> torch.Tensor:
        features = embed(self, batch).clone()
        features[1, 0] = float("nan")
        return features

    monkeypatch.setattr(FeatureExtractor, "embed", broken)
    report = extract_file(open_images(str(fill(range(4)))), tmp_path / "out.parquet", tiny)
    assert report.failed == {"a/0002.png": "its features are not finite"}
    assert len(read_features(tmp_path / "out.parquet").paths) == 3


def test_data_sets_give_their_rows_with_failures_named(tmp_path: Path, tiny: FeatureExtractor) -> None:
    files = []
    for i in range(6):
        buffer = io.BytesIO()
        noise(i).save(buffer, "PNG")
        files.append(buffer.getvalue() if i != 2 else buffer.getvalue()[:500])
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=["x", "y"])}
    )
    rows = {"image": [{"bytes": file, "path": None} for file in files], "label": [0, 1, 0, 1, 0, 1]}
    (tmp_path / "parquet").mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "parquet" / "train-0.parquet")
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "train-000.tar", "w") as tar:
        for i, file in enumerate(files):
            for name, content in ((f"{i}.png", file), (f"{i}.cls", str(i % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    expected = tiny([noise(i) for i in (0, 1, 3, 4, 5)])
    for number, name in enumerate((f"hfds/{tmp_path / 'parquet'}", f"wds/{tmp_path / 'shards'}")):
        source, out = open_images(name), tmp_path / f"{number}.parquet"
        report = extract_file(source, out, tiny)
        assert list(report.failed) == [source.ids[2]]
        result = read_features(out)
        assert result.paths == [each for i, each in enumerate(source.ids) if i != 2]
        np.testing.assert_allclose(result.features, expected, atol=1e-5)
        np.testing.assert_array_equal(result.labels, [0, 1, 1, 0, 1])


def start(*arguments: object, launcher: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
    command = [*launcher, str(ROOT / "hub" / "extract.py"), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def test_killed_and_finished_by_two_processes_gives_the_rows_of_one(fill: Fill, tmp_path: Path) -> None:
    folder, out = fill(range(150)), tmp_path / "out.parquet"
    (folder / "b" / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    options = (folder, out, "--model", "test_vit", "--random-init", "--batch-size", 2, "--workers", 0)
    first = start(*options)
    parts = tmp_path / "out.parquet.parts"
    while first.poll() is None and len(list(parts.glob("*.safetensors"))) < 2:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not out.exists()
    assert list(parts.glob("*.safetensors"))
    second = start(*options, launcher=(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"))
    output, errors = second.communicate()
    assert second.returncode == 1  # one image failed
    assert "resuming:" in errors
    assert "failed: b/cut.jpg: " in errors
    assert "model test_vit, untrained, input 160x160" in output
    assert "150 rows" in output
    extract = FeatureExtractor("test_vit", random_init=True, batch_size=2)
    extract_file(open_images(str(folder)), tmp_path / "one.parquet", extract)
    both, one = read_features(out), read_features(tmp_path / "one.parquet")
    assert both.paths == one.paths
    np.testing.assert_allclose(both.features, one.features, atol=1e-5)


def test_the_script_refuses_bad_input_in_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as refused:
        run(lambda: run_script("hub/extract.py", tmp_path / "empty", tmp_path / "out.parquet"))
    assert refused.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {tmp_path / 'empty'}: no image files")
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
