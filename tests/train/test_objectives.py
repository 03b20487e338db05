"""The objectives' flags from the command line: train/lambda_jepa.py, and LeJEPA's options, on real digits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scripts import call_script, load_script

import aotadmm_timm  # noqa: F401  (registers the models)
from aotadmm_timm.cli import build
from aotadmm_timm.runs.folder import read_log

TRAIN = Path(__file__).parents[2] / "train"
SMALL = ["--model", "test_aot_admm", "--projector", "32", "16", "--num-samples", "100", "--batch-size", "32"]
SMALL += ["--epochs", "2", "--log-every", "1", "--num-local", "1", "--amp", "off", "--no-evaluate"]


def call(monkeypatch: pytest.MonkeyPatch, name: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    call_script(monkeypatch, f"train/{name}.py", *SMALL, "--output", str(out), *arguments)
    return [row for row in read_log(out / "log.jsonl") if "loss" in row]


def convention(out: Path) -> dict[str, Any]:
    return json.loads((out / "metrics.json").read_text())["convention"]


def test_lambda_jepa_calibrates_resumes_and_stores_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--calibrate", "2", "--target", "ema", "--projector-buffer", "2", "--backbone-buffer", "1")
    through = call(monkeypatch, "lambda_jepa", tmp_path / "through", *flags)
    assert {"inv", "projector_sacreg", "backbone_sacreg", "tap_zeros", "tap_max"} <= through[0].keys()
    call(monkeypatch, "lambda_jepa", tmp_path / "halves", *flags, "--stop-after", "1")
    halves = call(monkeypatch, "lambda_jepa", tmp_path / "halves", *flags, "--resume", "auto")
    assert len(halves) == len(through) == 6
    assert [row["loss"] for row in halves] == [row["loss"] for row in through]  # ring buffer and EMA came back
    found = convention(tmp_path / "through")
    assert found["tap"] == "norm"
    assert found["inv"] != 32.8
    assert convention(tmp_path / "halves") == found
    # the weighted sum of the logged terms is the logged loss: with the given weights before, the found ones after
    given = {"inv": 32.8, "projector_sacreg": 157.8, "backbone_sacreg": 1.894}
    for row, weights in ((through[1], given), (through[2], found), (through[-1], found)):
        assert row["loss"] == pytest.approx(sum(weights[name] * row[name] for name in given), rel=1e-4)
    last = torch.load(tmp_path / "through" / "checkpoints" / "last.pt", weights_only=True)
    assert last["state"]["method"]["projector_sacreg.past_1"].shape == (32, 16)


def test_lejepa_with_backbone_terms_and_no_projector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "--epochs 1 --projector none --backbone-sacreg 0.2 --backbone-sigreg 0.1 --form sum --pool-views --target all"
    )
    row = call(monkeypatch, "lejepa", tmp_path / "run", *flags.split(), "--tap", "norm")[0]
    parts = row["inv"] + 0.05 * row["sigreg"] + 0.2 * row["backbone_sacreg"] + 0.1 * row["backbone_sigreg"]
    assert row["loss"] == pytest.approx(parts, rel=1e-4)
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["convention"]
    assert stored == convention(tmp_path / "run")
    expected = {"form": "sum", "target": "all", "pooling": "all views", "projector": "none", "tap": "norm"}
    assert {key: stored[key] for key in expected} == expected
    assert (stored["backbone_sacreg"], stored["backbone_sigreg"]) == (0.2, 0.1)


def test_lejepa_with_a_users_regularizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_regularizer.py").write_text("def unit_power(z, step):\n    return (z.square().mean() - 1) ** 2\n")
    monkeypatch.chdir(tmp_path)
    flags = ("--epochs", "1", "--regularizer", "my_regularizer:unit_power")
    row = call(monkeypatch, "lejepa", tmp_path / "run", *flags)[0]
    assert row["loss"] == pytest.approx(0.95 * row["inv"] + 0.05 * row["regularizer"], rel=1e-4)
    assert convention(tmp_path / "run")["regularizer"] == "my_regularizer:unit_power"
    with pytest.raises(ValueError, match="did you mean 'unit_power'"):
        call(monkeypatch, "lejepa", tmp_path / "other", *flags[:3], "my_regularizer:unit_powr")


def test_lejepa_with_a_named_regularizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--epochs", "1", "--regularizer", "moments(order=3)", "--directions", "sobol", "--num-slices", "16")
    row = call(monkeypatch, "lejepa", tmp_path / "run", *flags)[0]
    assert row["loss"] == pytest.approx(0.95 * row["inv"] + 0.05 * row["regularizer"], rel=1e-4)
    assert convention(tmp_path / "run")["regularizer"] == "moments(order=3)"
    with pytest.raises(ValueError, match=r"'jarque-bera' does not see the scale .* --normalize"):
        call(monkeypatch, "lejepa", tmp_path / "other", "--regularizer", "jarque-bera")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("recipe", sorted(p.name for p in (TRAIN / "recipes").glob("lambda_jepa_*.yaml")))
def test_recipes_keep_enough_centres(recipe: str) -> None:
    cfg = build(
        load_script("train/lambda_jepa.py").Config,
        yaml.safe_load((TRAIN / "recipes" / recipe).read_text()),
        source=recipe,
    )
    images = cfg.batch_size * (2 if "imagenet" in recipe else 1)  # over two processes
    for width, past in (
        (cfg.projector_slice_dim, cfg.projector_buffer),
        (cfg.backbone_slice_dim, cfg.backbone_buffer),
    ):
        assert images * (1 + past) == 4 * width
    if "imagenet" in recipe:
        published = {
            "imagenet100_small": (4, 32.8, 157.8, 1.894, "pairwise"),
            "imagenet1k_small": (6, 31.07, 225.50, 1.671, "ema"),
            "imagenet1k_base": (6, 22.81, 222.26, 4.054, "ema"),
        }[recipe.removeprefix("lambda_jepa_").removesuffix(".yaml")]
        found = (cfg.num_global, cfg.inv_weight, cfg.projector_sacreg, cfg.backbone_sacreg, cfg.target)
        assert found == published
        assert cfg.num_local == 0
