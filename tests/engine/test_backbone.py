"""Any timm model as a backbone, or a refusal that says what to change."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.engine.backbone import create_backbone
from aotadmm_timm.errors import UserError
from aotadmm_timm.methods import LeJEPA, Views
from aotadmm_timm.plugin import import_plugin
from aotadmm_timm.runs.folder import RunFolder


@pytest.mark.parametrize(
    ("name", "options", "args"),
    [
        ("test_vit", {}, {"img_size": 32}),
        ("test_aot_admm", {}, {"img_size": 32}),
        ("test_resnet", {}, {}),
        ("test_convnext", {"small_image_stem": True}, {"base": "test_convnext"}),
        ("test_vit", {"model_kwargs": {"depth": 2, "patch_size": 4}}, {"img_size": 32, "depth": 2, "patch_size": 4}),
    ],
)
def test_takes_both_sizes_and_exports(tmp_path: Path, name: str, options: dict[str, Any], args: dict[str, Any]) -> None:
    model, architecture, model_args = create_backbone(name, [32, 16], **options)
    assert model_args == args
    assert architecture == ("small_image_stem" if options.get("small_image_stem") else name)
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)
    views = MultiCrop()(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), 0, np.arange(4))
    method = LeJEPA(model, projector=(16, 8), num_slices=8)
    method(Views(*views), 0).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    run = RunFolder(tmp_path)
    run.save_encoder(model, model_args=model_args)
    loaded = timm.create_model(f"local-dir:{run.encoder}", pretrained=True).eval()
    x = views[0][0]
    assert torch.equal(loaded(x), model.eval()(x))


@pytest.mark.parametrize(
    ("name", "sizes", "options", "message"),
    [
        ("resnet81", [32], {}, r"unknown model 'resnet81' \(nearest known: resnet"),
        ("test_vit", [32, 8], {"model_kwargs": {"patch_size": 16}}, "8x8 pixels is smaller than a patch of 16x16"),
        ("test_convnext", [32, 8], {}, "cannot take views of 8x8 pixels .*--small-image-stem"),
        ("test_resnet", [32], {"model_kwargs": {"nonsense": 1}}, "test_resnet: .*nonsense"),
        ("test_resnet", [32], {"model_kwargs": {"in_chans": 1}}, "in_chans=1: training images are RGB"),
        ("test_vit", [32], {"small_image_stem": True}, "test_vit has no convolutional stem"),
        ("test_vit", [32], {"model_kwargs": {"global_pool": ""}}, "features must be .B, d."),
    ],
)
def test_refusals(name: str, sizes: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        create_backbone(name, sizes, **options)


def test_a_network_that_shrinks_views_to_a_point_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        create_backbone("test_resnet", [32, 16])
    assert "test_resnet shrinks a view of 16x16 pixels to a point before pooling; --small-image-stem" in caplog.text
    caplog.clear()
    create_backbone("test_resnet", [32, 16], small_image_stem=True)
    assert not caplog.text


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"img_size": 64}, "--model-kwargs img_size=64: --img-size sets the size"),
        ({"dynamic_img_size": True}, "--img-size sets the size"),
        ({"num_classes": 3}, "num_classes=3: a backbone has no classifier"),
        ({"num_heads": 0}, "model test_vit: ZeroDivisionError"),
        ({"act_layer": 3}, "model test_vit: "),
    ],
)
def test_model_arguments_that_cannot_be(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        create_backbone("test_vit", [32, 16], model_kwargs=kwargs)
    assert "\n" not in str(caught.value)


def test_import_of_a_file_registers_its_model(tmp_path: Path) -> None:
    source = """
import timm
from timm.models import register_model

config = {"input_size": (3, 32, 32), "num_classes": 0, "mean": (0.5,) * 3, "std": (0.5,) * 3}
config |= {"first_conv": "patch_embed.proj", "classifier": "head"}
default_cfgs = timm.models.generate_default_cfgs({"my_own_vit": config})

@register_model
def my_own_vit(pretrained=False, **kwargs):
    size = {"embed_dim": 24, "depth": 1, "num_heads": 2, "patch_size": 8}
    model_cls = timm.models.VisionTransformer
    return timm.models.build_model_with_cfg(model_cls, "my_own_vit", pretrained, **{**size, **kwargs})
"""
    (tmp_path / "my_models.py").write_text(source)
    import_plugin(str(tmp_path / "my_models.py"))
    assert create_backbone("my_own_vit", [32, 16])[0].num_features == 24


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", "no such file"),
        ("no_such_module", "No module named"),
        ("broken.py", r"--import .*broken\.py: "),
        ("fails.py", r"--import fails\.py: ZeroDivisionError: division by zero"),
        ("ends.py", r"--import ends\.py: SystemExit"),
    ],
)
def test_imports_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "fails.py").write_text("1 / 0")
    (tmp_path / "ends.py").write_text("raise SystemExit(0)")
    with pytest.raises(UserError, match=message):
        import_plugin(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "small_image_stem"), [("vit_small_patch8_224", False), ("resnet18", True), ("convnext_atto", True)]
)
def test_twenty_steps_on_cifar_crops(name: str, small_image_stem: bool) -> None:
    torch.manual_seed(0)
    model, _, _ = create_backbone(name, [32, 16], small_image_stem=small_image_stem)
    method = LeJEPA(model, projector=(128, 32), num_slices=32)
    optimizer = torch.optim.AdamW(method.parameters(), 5e-4)
    images = torch.nn.functional.interpolate(torch.rand(8, 3, 8, 8), size=32, mode="bicubic").clamp(0, 1)
    losses = []
    for step in range(20):
        views = MultiCrop(num_local=2)(images.mul(255).to(torch.uint8), step, np.arange(8))
        loss = method(Views(*views), step).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.slow
def test_convnext_without_the_small_stem_is_refused() -> None:
    with pytest.raises(UserError, match=r"convnext_atto cannot take views of 16x16 pixels .*--small-image-stem"):
        create_backbone("convnext_atto", [32, 16])
