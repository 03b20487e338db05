"""A finished run folder, as a fixture that the folders of tests import in their conftest."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import yaml
from PIL import Image
from timm.models import save_for_hf

import aotadmm_timm  # noqa: F401  (registers the models)

METRICS = {
    "pretrained": {
        "knn20": 0.8123,
        "linear": 0.8456,
        "few_label_mean": 0.61,
        "few_label_std": 0.021,
        "rankme": 57.3,
        "train_images": 50000,
        "test_images": 10000,
        "width": 384,
    },
    "untrained": {"knn20": 0.35, "linear": 0.42, "test_images": 10000},
    "pixels": {"knn20": 0.33, "test_images": 10000},
    "evaluated_on": "test",
    "convention": {"method": "LeJEPA", "form": "convex", "target": "global", "lamb": 0.05, "tap": "pooled"},
    "environment": {"torch": "2.14.1", "commit": "0123abcd", "device": "cpu", "hardware": "Epyc", "threads": 2},
    "seconds": 3600.5,
    "images_per_second": 512.0,
}
CONFIG = {
    "model": "aot_admm_tiny",
    "dataset": "torch/cifar10",
    "epochs": 30,
    "batch_size": 256,
    "lr": 0.0005,
    "lamb": 0.05,
    "seed": 3,
    "min_lr": None,
    "projector": [512, 64],
    "convention": {"method": "LeJEPA"},
    "architecture": "aot_admm_tiny",
    "model_args": {"depth": 2},
}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run folder as training leaves it; keyword arguments go to the model."""

    def make(name: str = "run", **kwargs: object) -> Path:
        run = tmp_path / name
        run.mkdir()
        model = timm.create_model("aot_admm_tiny", **{"num_classes": 0, "depth": 2, **kwargs})
        save_for_hf(model, str(run / "encoder"), safe_serialization=True)
        places = {"output": str(run), "data_dir": str(tmp_path / "data")}
        (run / "config.yaml").write_text(yaml.safe_dump(CONFIG | places))
        (run / "metrics.json").write_text(json.dumps(METRICS))
        records = [{"step": s, "loss": 1 / (s + 1), "inv": 0.25, "lr": 1e-4} for s in range(3)]
        (run / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + '{"step": 3, "lo')
        Image.new("RGB", (40, 30), "white").save(run / "curves.png")
        return run

    return make
