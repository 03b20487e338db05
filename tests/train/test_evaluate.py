"""train/evaluate.py on a real run: its own scores again, exact counts in several processes, transfer, the page."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from PIL import Image
from scripts import run_script

from aotadmm_timm.cli import parse
from aotadmm_timm.data import load_images
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.engine.pretrain import pretrain
from aotadmm_timm.engine.pretrain_options import PretrainConfig
from aotadmm_timm.errors import UserError
from aotadmm_timm.evaluation.protocol import evaluate
from aotadmm_timm.evaluation.view_features import extract_view_features
from aotadmm_timm.methods.lejepa import LeJEPA
from aotadmm_timm.options import EvaluateConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature pretrained on the handwritten digits 0, 1 and 2, in a folder."""
    root = tmp_path_factory.mktemp("runs")
    for split, count in (("train", 40), ("test", 9)):
        images = load_images("digits", split)
        for digit in range(3):
            (root / "digits" / split / str(digit)).mkdir(parents=True)
            for index in np.flatnonzero(images.labels == digit)[:count]:
                images[index][0].save(root / "digits" / split / str(digit) / f"{index}.png")
    folder = root / "run"
    cfg = PretrainConfig(
        model="test_aot_admm",
        dataset=str(root / "digits"),
        views="digits",
        epochs=2,
        batch_size=30,
        output=str(folder),
        device="cpu",
        seed=3,
    )
    pretrain(cfg, "lejepa", lambda backbone: LeJEPA(backbone, projector=(32, 32, 8), num_slices=16))
    return folder


def draw_folder(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """PNG files below split/class: noise around a colour that tells the class."""
    rng = np.random.default_rng(0)
    for split, classes in counts.items():
        for level, (name, count) in enumerate(classes.items()):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(100, 25, (32, 32, 3)) + 100 * (np.arange(3) == level)
                Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(root / split / name / f"{i}.png")
    return root


def settings(run: Path | str, **kwargs: Any) -> EvaluateConfig:
    return EvaluateConfig(run_or_model=str(run), **{"device": "cpu", "views": 0, "layer_images": 0, **kwargs})


def test_it_repeats_the_scores_that_the_training_ended_with_and_writes_everything(run: Path, capsys: Any) -> None:
    result = evaluate(settings(run, views=3, view_images=60, layer_images=20, report=True))
    metrics = json.loads((run / "metrics.json").read_text())
    for name in ("pretrained", "untrained"):
        assert result["scores"][name] == pytest.approx(metrics[name], rel=1e-6)
    (file,) = (run / "evaluation").glob("*.json")
    assert json.loads(file.read_text())["scores"] == result["scores"]
    assert result["geometry"]["projector"]["width"] == 8
    for name in ("pretrained", "untrained", "projector"):
        row = result["geometry"][name]
        assert 1 <= row["rankme"] <= row["width"]
        assert row["same_image"] > row["different_image"]
        assert list(row["per_class"]) == ["0", "1", "2"]
        assert 0 < row["recall_at_1"] <= 1
    assert result["layers"]["images"] == 20
    assert len(result["layers"]["untrained"]["curves"]) == 4
    assert {path.suffix for path in (run / "evaluation").iterdir()} == {".json", ".png"}
    printed = capsys.readouterr().out
    assert "120 train images, 27 test images" in printed
    page = (run / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "http" not in page
    for word in ("RankMe", "Loss terms", "num_samples", metrics["environment"]["torch"], "separability"):
        assert word in page


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_torchrun_scores_21_images_as_one_process_does(run: Path, tmp_path: Path, world: int) -> None:
    data = draw_folder(tmp_path / "data", {"train": {"a": 9, "b": 8, "c": 7}, "test": {"a": 8, "b": 7, "c": 6}})
    options = {"batch_size": 4, "baseline": False, "views": 2}
    alone = evaluate(settings(run, dataset=str(data), output=str(tmp_path / "one"), **options))
    assert alone["test_images"] == 21
    script = [str(ROOT / "train" / "evaluate.py"), str(run), "--dataset", str(data), "--output", str(tmp_path / "many")]
    flags = ["--batch-size", "4", "--no-baseline", "--views", "2", "--layer-images", "0", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}", *script, *flags],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "24 train images, 21 test images" in done.stdout
    assert done.stdout.count("results:") == 1
    (file,) = (tmp_path / "many").glob("*.json")
    together = json.loads(file.read_text())
    assert together["processes"] == world
    assert together["scores"] == alone["scores"]
    assert together["geometry"] == alone["geometry"]


def test_edges_one_class_few_images_and_no_test_split(run: Path, tmp_path: Path, capsys: Any) -> None:
    data = draw_folder(tmp_path / "one", {"train": {"only": 5}, "val": {"only": 3}})
    result = evaluate(settings(run, dataset=str(data), output=str(tmp_path / "a"), views=2, baseline=False))
    assert result["scores"]["pretrained"]["linear"] == result["scores"]["pretrained"]["knn200"] == 1.0
    assert "two classes" in result["geometry"]["pretrained"]["thickness_left_out"]
    data = draw_folder(tmp_path / "two", {"train": {"a": 20, "b": 20}})
    result = evaluate(settings(run, dataset=str(data), output=str(tmp_path / "b"), baseline=False))
    assert (result["train_images"], result["test_images"]) == (36, 4)
    assert result["evaluated_on"] == "a held-out tenth of train"
    assert "held-out tenth" in capsys.readouterr().out


def test_images_without_labels_are_measured_as_far_as_that_goes(tmp_path: Path, capsys: Any) -> None:
    labeled = draw_folder(tmp_path / "labeled", {"train": {"a": 12, "b": 12}})
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in sorted((labeled / "train").rglob("*.png")):
        shutil.copy(path, flat / f"{path.parent.name}_{path.name}")
    options = {"views": 2, "layer_images": 4, "report": True, "output": str(tmp_path / "out")}
    result = evaluate(settings("test_aot_admm", random_init=True, dataset=str(flat), **options))
    assert (result["train_images"], result["test_images"], result["has_labels"]) == (22, 2, False)
    assert result["scores"] == {}
    row = result["geometry"]["pretrained"]
    assert row.keys() >= {"rankme", "same_image", "different_image", "width"}
    assert not row.keys() & {"recall_at_1", "separability", "per_class"}
    assert row["thickness_left_out"] == "not all images have labels"
    assert len(result["layers"]["pretrained"]["curves"]) == 4
    message = "not all images have labels: kNN, probes, retrieval and thickness are left out"
    assert message in capsys.readouterr().out
    assert f"{message[0].upper()}{message[1:]}." in (tmp_path / "out" / "report.html").read_text()


def test_a_registered_model_without_a_run(tmp_path: Path) -> None:
    data = draw_folder(tmp_path / "data", {"train": {"a": 6, "b": 6}, "test": {"a": 4, "b": 4}})
    cfg = settings("test_crate", dataset=str(data), random_init=True, layer_images=8, output=str(tmp_path / "out"))
    result = evaluate(cfg)
    assert list(result["scores"]) == ["pretrained"]
    assert set(result["layers"]["pretrained"]["curves"][1]) == {"layer", "sparsity", "compression", "compression_falls"}


def test_a_finetuned_run_is_evaluated_on_the_tenth_that_it_never_saw(run: Path, tmp_path: Path) -> None:
    """Views come from the data set then: its configuration states none."""
    out = tmp_path / "tuned"
    data = draw_folder(tmp_path / "data", {"train": {"a": 60, "b": 60}})
    few = ["--num-samples", 90, "--epochs", 1, "--batch-size", 1, "--device", "cpu"]
    run_script("train/finetune.py", "--checkpoint", run, "--dataset", data, *few, "--output", out)
    result = evaluate(settings(out, views=2, view_images=20))
    assert (result["train_images"], result["test_images"]) == (81, 9)
    assert result["geometry"]["pretrained"]["views"] == 2
    assert evaluate(settings(out, num_samples=120))["train_images"] == 108


def test_views_leave_a_model_in_the_mode_that_it_was_in() -> None:
    model = timm.create_model("test_aot_admm", num_classes=0, drop_path_rate=0.5).eval()
    images = load_images("digits", "train", num_samples=6)
    extract_view_features({"m": model}, images, MultiCrop().replace(num_global=2, global_size=32))
    assert not any(module.training for module in model.modules())


def test_transfer_names_what_cannot_be_had_and_leaves_it_out(run: Path, tmp_path: Path, capsys: Any) -> None:
    data = draw_folder(tmp_path / "data", {"train": {"a": 9, "b": 8}, "test": {"a": 4, "b": 7}})
    names = (str(data), "torch/dtd", str(run.parent / "digits"), "torch/no_such")
    result = evaluate(
        settings(run, transfer=True, transfer_datasets=names, data_dir=str(tmp_path), output=str(tmp_path / "out"))
    )
    rows = result["datasets"]
    assert list(rows) == [str(data), names[2]]
    assert rows[str(data)]["test_images"] == 11
    assert rows[str(data)]["linear"] > 0.8  # colour is easy, also for a frozen miniature
    assert result["mean"]["linear"] == pytest.approx((rows[str(data)]["linear"] + rows[names[2]]["linear"]) / 2)
    assert list(result["left_out"]) == ["torch/dtd", "torch/no_such"]
    printed = capsys.readouterr().out
    assert "mean of 2" in printed
    assert "left out: torch/dtd" in printed
    assert json.loads((tmp_path / "out" / "transfer.json").read_text())["mean"] == result["mean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_model", "--dataset", "digits"], "unknown model 'no_such_model'"),
        (["test_aot_admm", "--dataset", "digits"], "no weights of that name"),
        (["test_aot_admm", "--random-init"], "--dataset is needed"),
        (["test_aot_admm", "--random-init", "--transfer", "--report"], "--report is of no use with --transfer"),
        (["test_aot_admm", "--random-init", "--dataset", "digits", "--target-key", "x"], "only hfds/ data sets have"),
        (["RUN", "--dataset", "no/such/folder"], "no/such/folder"),
        (["RUN", "--views", "1"], "--views must be 0 or at least 2, got 1"),
        (["RUN", "--vews", "4"], "nearest known: --views"),
    ],
)
def test_bad_input_ends_in_one_line(run: Path, arguments: list[str], message: str) -> None:
    arguments = [str(run) if word == "RUN" else word for word in arguments]
    with pytest.raises(UserError) as error:
        evaluate(parse(EvaluateConfig, [*arguments, "--device", "cpu"], positional=("run_or_model",)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
