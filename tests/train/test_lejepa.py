"""train/lejepa.py: the whole way on real digits, its refusals, and a pinned run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file
from scripts import load_script

import aotadmm_timm  # noqa: F401  (registers the models)
from aotadmm_timm.cli import run
from aotadmm_timm.runs.folder import read_log

SCRIPT = Path(__file__).parents[2] / "train" / "lejepa.py"
SMALL = [
    "--model",
    "test_aot_admm",
    "--projector",
    "64",
    "32",
    "--num-slices",
    "32",
    "--log-every",
    "1",
    "--amp",
    "off",
]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The script's main in this process; bad input ends it as it would end the program."""

    def run_main(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        run(load_script("train/lejepa.py").main)

    return run_main


def test_pretrains_and_leaves_a_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(SCRIPT), *SMALL, "--epochs", "2", "--num-samples", "300", "--output", str(out)]
    command += ["--batch-size", "128"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for row in ("pretrained", "untrained", "pixels"):
        assert row in done.stdout
    assert f"run folder: {out}" in done.stdout
    assert f"next: python train/evaluate.py {out}" in done.stdout
    assert {p.name for p in out.iterdir()} == {
        "config.yaml", "log.jsonl", "metrics.json", "curves.png", "tb", "checkpoints", "encoder",
    }  # fmt: skip
    rows = read_log(out / "log.jsonl")
    assert [r["step"] for r in rows if "loss" in r] == [1, 2, 3, 4]
    assert {"loss", "inv", "sigreg", "lr", "images_per_s", "epoch"} <= rows[0].keys()
    assert any("offline_knn20" in r for r in rows)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["evaluated_on"] == "test"
    assert metrics["pretrained"]["test_images"] == 359
    assert metrics["convention"]["form"] == "convex"
    assert yaml.safe_load((out / "config.yaml").read_text())["num_samples"] == 300
    # raw pixels are the same whoever measures them: 10 digits, 300 labels
    assert 0.85 < metrics["pixels"]["linear"] < 0.97

    model = timm.create_model(f"local-dir:{out / 'encoder'}", pretrained=True)
    weights = load_file(out / "encoder" / "model.safetensors")
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    fresh = timm.create_model("test_aot_admm", num_classes=0)
    moved = [k for k, v in fresh.named_parameters() if not torch.equal(v, weights[k])]
    assert "blocks.0.attn.qkv.weight" in moved


def test_seeded_run_is_pinned(call: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty float32 steps; a change of loss, views, order, schedule or initialisation moves these numbers."""
    call(
        *SMALL,
        "--epochs",
        "2",
        "--num-samples",
        "640",
        "--batch-size",
        "64",
        "--num-local",
        "2",
        "--lr",
        "2e-3",
        "--no-evaluate",
        "--output",
        str(tmp_path / "a"),
    )
    losses = [row["loss"] for row in read_log(tmp_path / "a" / "log.jsonl") if "loss" in row]
    assert len(losses) == 20
    # float32 sums differ by rounding between machines and thread counts; 20 steps amplify it to about 1e-4
    assert losses[0] == pytest.approx(PINNED[0], rel=1e-4)
    assert losses[9] == pytest.approx(PINNED[1], rel=1e-3)
    assert losses[19] == pytest.approx(PINNED[2], rel=1e-3)

    # the command line's own default refuses to run over it, and --resume has nothing left to do
    with pytest.raises(SystemExit) as stop:
        call(*SMALL, "--output", str(tmp_path / "a"))
    assert stop.value.code == 2
    assert "already holds a run" in capsys.readouterr().err


PINNED = (1.08058, 0.90530, 0.84471)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "aot_admm_tinny"], ["aot_admm_tinny", "aot_admm_tiny"]),
        (["--dataset", "digitz"], ["digitz", "digits"]),
        (["--dataset", "./missing"], ["./missing"]),
        (["--dataset", "hfds/./missing"], ["./missing"]),
        (["--batch-size", "2000"], ["2000", "1438"]),
        (["--batch-size", "1"], ["--batch-size", "BatchNorm"]),
        (["--global-size", "4"], ["(4, 4)", "patch_size"]),
        (["--num-local", "2", "--local-size", "4"], ["4x4", "patch"]),
        (["--local-size", "16"], ["--local-size 16", "--num-local"]),
        (["--min-lr", "1", "--lr", "0.1"], ["--min-lr", "--lr"]),
        (["--lambb", "0.1"], ["--lambb", "--lamb"]),
        (["--epochs", "ten"], ["--epochs", "ten"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["--warmup-epochs", "7", "--epochs", "5"], ["--warmup-epochs", "5"]),
        (["--model", "resnet18", "--model-kwargs", "nonsense=1"], ["resnet18", "nonsense"]),
        (["--resume", "nowhere.pt"], ["nowhere.pt"]),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_line(
    call: Callable[..., None],
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        call("--model", "test_aot_admm", "--output", str(tmp_path / "run"), *arguments)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert all(word in lines[0] for word in words), lines[0]
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_unknown_yaml_key_names_the_nearest(
    call: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("epoch: 3\n")
    with pytest.raises(SystemExit):
        call("--config", str(recipe))
    assert "unknown key 'epoch' (nearest known: epochs)" in capsys.readouterr().err


def test_divergence_names_step_and_term_and_keeps_the_checkpoint(
    call: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blow_up.py").write_text(
        "def f(z, step):\n    return z.square().mean() * (float('nan') if step >= 5 else 1)\n"
    )
    few = [*SMALL, "--num-samples", "128", "--batch-size", "64", "--no-evaluate", "--output", "run"]
    with pytest.raises(SystemExit) as stop:
        call(*few, "--epochs", "9", "--regularizer", "blow_up:f")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: step 5: term 'regularizer' is nan")
    saved = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert saved["step"] == 4
    assert all(v.isfinite().all() for v in saved["state"]["method"].values() if v.is_floating_point())


def test_recipes_are_valid() -> None:
    from aotadmm_timm.cli import build, read_yaml

    script = load_script("train/lejepa.py")
    cfg = build(script.Config, read_yaml(SCRIPT.parent / "recipes" / "cifar10_tiny.yaml"))
    assert (cfg.epochs, cfg.batch_size, cfg.lr, cfg.weight_decay) == (800, 256, 5e-4, 0.05)
