"""train/finetune.py and train/distill.py on real digits: sources, heads, rates, resume, distillation from a teacher."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file

from aotadmm_timm.pretrained import open_model
from aotadmm_timm.runs.folder import read_log

TRAIN = Path(__file__).parents[2] / "train"
QUICK = ["--num-samples", 192, "--batch-size", 64, "--amp", "off", "--device", "cpu", "--log-every", 1, "--epochs", 1]

STRONG = ["--epochs", 5, "--lr", 3e-3, "--num-samples", 640, "--batch-size", 32, "--crop-scale", 0.7, 1]


def call(script: str, *arguments: object) -> None:
    """A script's main in this process."""
    before = sys.argv
    sys.argv = [script, *map(str, arguments)]
    try:
        runpy.run_path(str(TRAIN / script), run_name="__main__")
    finally:
        sys.argv = before


def refused(capsys: pytest.CaptureFixture[str], script: str, *arguments: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        call(script, *arguments)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in lines if line.startswith("error")]) == 1
    return lines[-1]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining run of one epoch."""
    out = tmp_path_factory.mktemp("pretrained") / "run"
    size = ["--projector", 32, 16, "--num-slices", 16, "--num-local", 2]
    call("lejepa.py", "--model", "test_aot_admm", *size, *QUICK, "--no-evaluate", "--output", out)
    return out


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, pretrained: Path) -> Path:
    """A classifier that has learned the digits: a ViT, mean and std of ImageNet, patches of 16 pixels at 48x48."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=48, num_classes=0)
    model.pretrained_cfg["mean"], model.pretrained_cfg["std"] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    timm.models.save_for_hf(model, folder / "start", safe_serialization=True)
    call(
        "finetune.py", "--checkpoint", folder / "start", *QUICK, *STRONG, "--layer-decay", 1, "--output", folder / "run"
    )
    return folder / "run"


def test_finetune_from_a_run(tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    call("finetune.py", "--checkpoint", pretrained, *QUICK, "--layer-decay", 0.5, "--ema", 0.9, "--output", out)
    printed = capsys.readouterr().out
    assert "new parameters: head.weight, head.bias\n" in printed
    rates = printed.partition("learning rates by depth: ")[2].partition("\n")[0].split(", ")
    assert len(rates) >= 4  # stem, three layers, head
    assert float(rates[-1]) == pytest.approx(5e-4)
    assert float(rates[0]) <= 5e-4 / 8
    rows = read_log(out / "log.jsonl")
    assert [r["step"] for r in rows if "loss" in r] == [1, 2, 3]
    assert {"loss", "train_accuracy", "lr"} <= rows[0].keys()
    assert [r["epoch"] for r in rows if "test_accuracy" in r] == [1]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["test_images"] == 359
    assert metrics["accuracy"] == rows[-1]["test_accuracy"]
    loaded = timm.create_model(f"local-dir:{out / 'encoder'}", pretrained=True)
    assert loaded.num_classes == 10
    assert loaded.pretrained_cfg["label_names"] == list("0123456789")
    assert "num_classes" not in json.loads((out / "encoder" / "config.json").read_text()).get("model_args", {})


def test_effective_rates_differ_by_depth(tmp_path: Path, pretrained: Path) -> None:
    """Not only the stored scales: the rates that the optimizer used last."""
    out = tmp_path / "run"
    one = ["--opt", "sgd", "--weight-decay", 0, "--num-samples", 64, "--warmup-epochs", 0, "--save-every", 0]
    call("finetune.py", "--checkpoint", pretrained, *QUICK, *one, "--layer-decay", 0.5, "--output", out)
    content = torch.load(out / "checkpoints" / "last.pt", weights_only=True)
    groups = content["state"]["optimizer"]["param_groups"]
    scales = sorted({g["lr_scale"] for g in groups})
    assert scales == pytest.approx([0.5**k for k in reversed(range(len(scales)))])
    for group in groups:
        assert group["lr"] == pytest.approx(5e-4 * group["lr_scale"])


def test_another_size_and_class_count_from_a_bare_file(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(pretrained / "encoder" / "model.safetensors")
    file = tmp_path / "ck.safetensors"
    save_file(weights, file)
    out = tmp_path / "run"
    change = ["--img-size", 64, "--num-classes", 12, "--lr", 1e-12, "--min-lr", 0, "--layer-decay", 1]
    arguments = ["--checkpoint", file, *QUICK, *change, "--num-samples", 64, "--output", out]
    assert "does not say which model" in refused(capsys, "finetune.py", *arguments)
    call("finetune.py", "--model", "test_aot_admm", *arguments)
    assert "images of 64x64, 12 classes" in (printed := capsys.readouterr().out)
    assert "new parameters: head.weight, head.bias\n" in printed
    after = load_file(out / "encoder" / "model.safetensors")
    assert after["head.weight"].shape == (12, 48)
    assert after["pos_embed"].shape == (1, 65, 48)
    for key, value in weights.items():  # at a rate of nothing the rest is what it was
        if key != "pos_embed":
            torch.testing.assert_close(after[key], value, rtol=0, atol=1e-6)
    # beside its configuration no --model is needed
    call("finetune.py", "--checkpoint", pretrained / "encoder" / "model.safetensors", *arguments[2:-1], tmp_path / "b")


def test_a_checkpoint_of_an_unfinished_run_and_a_head_that_stays(
    tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    call("finetune.py", "--checkpoint", pretrained / "checkpoints" / "last.pt", *QUICK, "--output", first)
    assert "new parameters: head.weight, head.bias" in capsys.readouterr().out
    call("finetune.py", "--checkpoint", first / "checkpoints" / "last.pt", *QUICK, "--output", tmp_path / "second")
    assert "new parameters: none, the classifier is kept" in capsys.readouterr().out


def test_drop_path_and_the_look_of_images_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Of an unfinished run, too, whose folder holds no encoder/ that states them."""
    torch.manual_seed(0)
    model = timm.create_model("test_aot_admm", num_classes=0, drop_path_rate=0.3)
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0.1, 0.2, 0.3)}
    timm.models.save_for_hf(model, tmp_path / "start", safe_serialization=True, model_args={"drop_path_rate": 0.3})
    few = [*QUICK, "--num-samples", 64, "--img-size", 48]
    call("finetune.py", "--checkpoint", tmp_path / "start", *few, "--output", tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "encoder")
    last = tmp_path / "a" / "checkpoints" / "last.pt"
    for flags, rate in (([], 0.3), (["--drop-path", 0], 0.0)):
        out = tmp_path / f"b{rate}"
        call("finetune.py", "--checkpoint", last, *few, *flags, "--output", out)
        config = json.loads((out / "encoder" / "config.json").read_text())
        assert config["pretrained_cfg"]["mean"] == [0.1, 0.2, 0.3]
        assert config["pretrained_cfg"]["input_size"] == [3, 48, 48]
        assert yaml.safe_load((out / "config.yaml").read_text())["model_args"]["drop_path_rate"] == rate
    pushed, _ = open_model(last)
    assert tuple(pushed.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)  # type: ignore[index]


def test_mixed_and_resumed_is_the_run_that_was_not(tmp_path: Path, pretrained: Path) -> None:
    mix = ["--mixup", 0.8, "--cutmix", 1.0, "--ema", 0.9, "--drop-path", 0.2, "--epochs", 2]
    for name, stops in (("whole", [[]]), ("parts", [["--stop-after", 1], []])):
        for stop in stops:
            arguments = ["--checkpoint", pretrained, *QUICK, *mix, *stop, "--output", tmp_path / name]
            call("finetune.py", *arguments, "--resume", "auto")
    whole, parts = (
        [{k: v for k, v in r.items() if k != "images_per_s"} for r in read_log(tmp_path / n / "log.jsonl")]
        for n in ("whole", "parts")
    )
    assert whole == parts
    assert "train_accuracy" not in whole[0]
    files = [(tmp_path / n / "encoder" / "model.safetensors").read_bytes() for n in ("whole", "parts")]
    assert files[0] == files[1]


def test_distill_into_a_vit_without_mlps(tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = json.loads((teacher / "metrics.json").read_text())["accuracy"]
    assert accuracy > 0.35, "the teacher has not learned"
    out = tmp_path / "run"
    student = ["--model", "test_vit_mlpfree", "--model-kwargs", "embed_dim=64", "depth=6", "num_heads=2"]
    arguments = ["--teacher", teacher, "--init", "teacher", *QUICK, *STRONG, "--img-size", 32, "--output", out]
    call("distill.py", *student, *arguments)
    assert "new parameters: none, the classifier is kept" in capsys.readouterr().out
    rows = [r for r in read_log(out / "log.jsonl") if "loss" in r]
    for row in rows:
        assert row["loss"] == pytest.approx((row["label_loss"] + row["teacher_loss"]) / 2, rel=1e-5)
    assert json.loads((out / "metrics.json").read_text())["accuracy"] > 0.3
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["teacher"] == str(teacher)
    state: dict[str, Any] = torch.load(out / "checkpoints" / "last.pt", weights_only=True)["state"]["method"]
    assert not any("mlp" in key or "teacher" in key for key in state)


def test_finetune_starts_another_architecture_from_the_weights(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The student of the distillation above without a teacher: the same start, and labels alone."""
    out = tmp_path / "run"
    student = ["--model", "test_vit_mlpfree", "--model-kwargs", "embed_dim=64", "depth=6", "num_heads=2"]
    still = [*QUICK, "--num-samples", 64, "--lr", 1e-12, "--min-lr", 0, "--layer-decay", 1, "--output", out]
    call("finetune.py", "--checkpoint", teacher, *student, *still)
    assert "test_vit_mlpfree on digits" in (printed := capsys.readouterr().out)
    assert "new parameters: none, the classifier is kept" in printed
    before, after = (load_file(run / "encoder" / "model.safetensors") for run in (teacher, out))
    assert not any("mlp" in key for key in after)
    assert any("mlp" in key for key in before)
    for key in after.keys() - {"patch_embed.proj.weight", "pos_embed"}:  # resampled: the student's patches are smaller
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-6, msg=key)


def test_distillation_token(tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deit = ["--model", "deit_tiny_distilled_patch16_224", "--model-kwargs", "embed_dim=48", "depth=2", "num_heads=2"]
    arguments = [*QUICK, "--teacher", teacher, "--head", "token", "--img-size", 32, "--output", tmp_path / "run"]
    call("distill.py", *deit, *arguments)
    row = read_log(tmp_path / "run" / "log.jsonl")[0]
    assert row["loss"] == pytest.approx((row["task_loss"] + row["distill_loss"]) / 2, rel=1e-5)
    message = refused(capsys, "distill.py", "--model", "test_vit", *arguments[:-1], tmp_path / "other")
    assert "test_vit has no distillation token" in message


def test_refusals(tmp_path: Path, pretrained: Path, teacher: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", tmp_path / "run"]
    for script, arguments, words in [
        ("finetune.py", [], ["--checkpoint"]),
        ("finetune.py", ["--checkpoint", "nowhere"], ["nowhere"]),
        ("finetune.py", ["--checkpoint", pretrained, "--num-classes", 3], ["--num-classes 3", "has 10"]),
        ("finetune.py", ["--checkpoint", pretrained, "--mixup", 1, "--batch-size", 63], ["--batch-size 63", "even"]),
        ("finetune.py", ["--checkpoint", pretrained, "--layer-decay", 0], ["--layer-decay"]),
        ("finetune.py", ["--checkpoint", pretrained, "--img-size", 4], ["4"]),
        ("finetune.py", ["--checkpoint", pretrained, "--model", "test_aot_adm"], ["nearest known: test_aot_admm"]),
        (
            "finetune.py",
            ["--checkpoint", pretrained, "--model", "test_vit"],
            ["test_vit cannot start from weights of test_aot_admm"],
        ),
        ("distill.py", [], ["--teacher"]),
        ("distill.py", ["--teacher", pretrained], ["0 classes"]),
        ("distill.py", ["--teacher", teacher, "--teacher-model", "test_vit2"], ["of test_vit, not of test_vit2"]),
        ("distill.py", ["--teacher", teacher, "--model", "vit_tiny_mlpfre"], ["vit_tiny_mlpfree"]),
        ("distill.py", ["--teacher", teacher, "--init", "teacher"], ["vit_tiny_mlpfree", "does not fit"]),
        ("distill.py", ["--teacher", teacher, "--num-classes", 11], ["10 classes"]),
    ]:
        message = refused(capsys, script, *arguments, *out)
        assert all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


def test_without_a_test_set_a_tenth_is_held_out(tmp_path: Path, pretrained: Path) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "data" / "train" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(path)
    (path.parent / "39.png").write_bytes(b"broken")
    quick = [*QUICK, "--batch-size", 8, "--dataset", tmp_path / "data", "--output", tmp_path / "run"]
    call("finetune.py", "--checkpoint", pretrained, *quick)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["evaluated_on"] == "held-out tenth of train"
    assert metrics["train_images"] + metrics["test_images"] == 39
