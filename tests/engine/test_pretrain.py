"""What a training refuses before its first step, and what is left if its end fails."""

import json
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import nn

from aotadmm_timm.engine.pretrain import pretrain
from aotadmm_timm.engine.pretrain_options import PretrainConfig
from aotadmm_timm.engine.supervised_options import SupervisedConfig
from aotadmm_timm.errors import UserError
from aotadmm_timm.methods.lambda_jepa import LambdaJEPA
from aotadmm_timm.methods.lejepa import LeJEPA


def method(backbone: nn.Module) -> LambdaJEPA:
    return LambdaJEPA(backbone, calibrate=3, projector=(16, 16))


def config(folder: Path, **options: object) -> PretrainConfig:
    for split, label in (("train", "a"), ("train", "b"), ("val", "a")):
        for i in range(2):
            path = folder / "data" / split / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (40 * i, 0, 0)).save(path)
    common = {"model": "test_vit", "global_size": 32, "local_size": 16, "batch_size": 4, "epochs": 1, "device": "cpu"}
    return PretrainConfig(**{**common, "dataset": str(folder / "data"), "output": str(folder / "run"), **options})  # type: ignore[arg-type]


def test_a_test_set_of_other_classes_is_refused_before_training(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    (tmp_path / "data" / "val" / "stranger").mkdir()
    with pytest.raises(ValueError, match="'stranger' is not among the classes of train"):
        pretrain(cfg, "x", method)
    assert not (tmp_path / "run").exists()


def test_a_pilot_longer_than_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--calibrate 3: the run has 1 steps only"):
        pretrain(config(tmp_path), "x", method)
    assert not (tmp_path / "run").exists()


def test_a_failure_of_the_scores_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("aotadmm_timm.engine.pretrain.final_scores", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        pretrain(config(tmp_path), "x", lambda backbone: LeJEPA(backbone, projector=(16, 8), num_slices=8))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["seconds"] > 0
    assert metrics["train_images"] == 4
    assert (tmp_path / "run" / "encoder" / "model.safetensors").is_file()


def test_views_smaller_than_the_images_of_evaluation(tmp_path: Path) -> None:
    sides: list[int] = []

    def build(backbone: nn.Module) -> LeJEPA:
        backbone.patch_embed.register_forward_pre_hook(lambda _, args: sides.append(args[0].shape[-1]))
        return LeJEPA(backbone, projector=(16, 8), num_slices=8)

    pretrain(config(tmp_path, model="test_aot_admm", img_size=32, global_size=24, evaluate=False), "x", build)
    assert set(sides[:2]) == {24, 16}
    saved = json.loads((tmp_path / "run" / "encoder" / "config.json").read_text())
    assert saved["pretrained_cfg"]["input_size"] == [3, 32, 32]
    encoder = timm.create_model(f"local-dir:{tmp_path / 'run' / 'encoder'}", pretrained=True)
    assert encoder.pos_embed.shape[1] == 1 + 4 * 4
    assert encoder(torch.zeros(1, 3, 32, 32)).shape == (1, 48)


@pytest.mark.parametrize("key", ["img_size", "num_classes"])
def test_model_arguments_that_have_their_own_flag(key: str) -> None:
    with pytest.raises(UserError, match=f"--model-kwargs {key}=64: --{key.replace('_', '-')} sets it"):
        SupervisedConfig(model_kwargs={key: 64})
