"""timm's contract over the registry: all rows on the miniatures and one size per family, the quick ones on the rest."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import get_arch_pretrained_cfgs, register_model
from torch import Tensor

from aotadmm_timm import check_contract, contract
from aotadmm_timm.models import create_unrolled
from aotadmm_timm.models.aot_admm import AoTADMM, AoTADMMBlock
from aotadmm_timm.models.configs import MINIATURE, bundled, cifar_cfg

MODULES = ["aot", "aot_admm", "aot_tost", "crate", "tost", "vit_mlpfree"]
REGISTERED = timm.list_models(module=MODULES)
MINIATURES = [name for name in REGISTERED if name.startswith("test_")]
ONE_PER_FAMILY = ["aot_admm_tiny", "aot_tiny", "aot_tost_tiny", "crate_tiny", "tost_tiny", "vit_tiny_mlpfree"]
FAMILIES = ("aot_admm", "aot", "crate", "tost", "aot_tost", "aot_admm_tost")
PUBLIC = {f"{family}_{size}" for family in FAMILIES for size in ("tiny", "small", "base")}
PUBLIC |= {f"vit_{size}_mlpfree" for size in ("tiny", "small", "base")}
PUBLIC |= {f"crate_{size}_patch16_224" for size in ("tiny", "small", "base", "large")}
PUBLIC |= {"aot_admm_base_patch16_128"}
OFFICIAL_TOST = ("tiny_12", "small_12", "small_24", "medium_24", "large_24")
PUBLIC |= {f"tost_{size}_patch{patch}_224" for size in OFFICIAL_TOST for patch in (8, 16)}
# The sizes of these families differ in width, depth and heads alone, which the quick rows set for themselves.
SAME = {name for name in REGISTERED if "tost" in name and "_tiny" not in name} - {"tost_large_24_patch16_224"}
SAME |= {"tost_tiny_12_patch8_224"}


def test_public_names_are_registered() -> None:
    assert set(REGISTERED) >= PUBLIC
    assert len(MINIATURES) == 8


@pytest.mark.parametrize("name", MINIATURES)
def test_every_row(name: str) -> None:
    assert len(check_contract(name)) == len(contract.ROWS) + len(contract.EXPORT_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PER_FAMILY)
def test_every_row_at_full_size(name: str) -> None:
    check_contract(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MINIATURES)
def test_inductor(name: str) -> None:
    """The default compiler gives the eager outputs and gradients."""
    model = contract.randomize(timm.create_model(name))
    x = contract.images(model)
    torch.compile(model, fullgraph=True)(x).square().sum().backward()
    compiled = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().sum().backward()
    for key, parameter in model.named_parameters():
        contract.expect_close(compiled[key], parameter.grad, f"gradient of {key}", 1e-4)


@pytest.mark.parametrize("name", sorted(set(REGISTERED) - SAME - set(MINIATURES)))
def test_quick_rows_over_the_registry(name: str) -> None:
    """The entry itself (its cfg, stem, width, heads), cut to 3 layers and a small image."""
    patch = timm.create_model(name, device="meta").patch_embed.patch_size[0]
    check_contract(name, exports=False, depth=3, img_size=3 * patch, embed_dim=96, num_heads=3)


@pytest.mark.parametrize(
    "name",
    [
        "aot_admm_tiny_patch16_224",
        "aot_tiny_patch16_224",
        "crate_tiny_patch16_224",
        "crate_alpha_base_patch16_224",
        "vit_tiny_mlpfree_patch16_224",
    ],
)
def test_a_traced_graph_gives_the_models_bits_at_imagenet_size(name: str) -> None:
    """197 tokens: other kernels than at 17."""
    contract.fx(partial(timm.create_model, name, depth=2, embed_dim=192, num_heads=3, num_classes=5))


@pytest.mark.parametrize("name", REGISTERED)
def test_configs(name: str) -> None:
    """Complete, at the model's own size, and without weights that do not exist."""
    model = timm.create_model(name, device="meta")
    for tag, cfg in get_arch_pretrained_cfgs(name).items():
        assert cfg.license, tag
        assert cfg.paper_name, tag
        assert cfg.origin_url or "Attention-Only White-Box Transformer" in cfg.paper_name  # which has no page yet
        assert cfg.paper_ids, tag
        assert cfg.interpolation == ("bilinear" if cfg.crop_pct == 0.875 else "bicubic")  # CRATE's own evaluation
        assert cfg.input_size[1:] == model.patch_embed.img_size
        assert cfg.fixed_input_size
        assert len(cfg.mean) == len(cfg.std) == 3
        assert not cfg.url
        assert not cfg.hf_hub_id
        assert cfg.file is None or Path(cfg.file).is_file()
    assert model.num_classes == model.pretrained_cfg["num_classes"]


def test_a_bundled_tag_exists_when_its_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotadmm_timm.models.configs.WEIGHTS", tmp_path)
    assert bundled("some_model.some_tag") == {}
    (tmp_path / "some_model.some_tag.safetensors").touch()
    (cfg,) = bundled("some_model.some_tag", mean=(0.1, 0.2, 0.3)).values()
    assert cfg["file"] == str(tmp_path / "some_model.some_tag.safetensors")
    assert cfg["mean"] == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("name", MINIATURES)
def test_low_precision_starts_like_float32(name: str) -> None:
    """Drawn in bfloat16, truncated normals would have outliers a hundred times their width."""
    single, half = (
        timm.create_model(name, embed_dim=192, num_heads=3, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    for (key, a), b in zip(single.named_parameters(), half.parameters(), strict=True):
        assert b.dtype == torch.bfloat16
        assert b.abs().max() <= 1.5 * a.abs().max() + 1e-3, key


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="'no_such_model'"):
        check_contract("no_such_model")


class DeadGain(AoTADMMBlock):
    """Breaks the contract: a parameter without gradient."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unused = torch.nn.Parameter(torch.ones(3))


class BatchMean(AoTADMMBlock):
    """Breaks the contract: branches on the values of a tensor."""

    def step(self, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().step(z, v, w) if bool(z.sum() > 0) else (z, z, w)


class Transposed(AoTADMM):
    """Breaks the contract: reads the patches column by column."""

    def embed(self, x: Tensor) -> Tensor:
        return super().embed(x.transpose(-2, -1).reshape(x.shape))


default_cfgs = timm.models.generate_default_cfgs(
    {
        "broken_gradient": cifar_cfg(),
        "broken_branch": cifar_cfg(),
        "broken_order": cifar_cfg(),
        "broken_size": cifar_cfg(fixed_input_size=False),
    }
)


@register_model
def broken_gradient(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(AoTADMM, "broken_gradient", pretrained, block_fn=DeadGain, **{**MINIATURE, **kwargs})


@register_model
def broken_branch(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(AoTADMM, "broken_branch", pretrained, block_fn=BatchMean, **{**MINIATURE, **kwargs})


@register_model
def broken_order(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(Transposed, "broken_order", pretrained, **{**MINIATURE, **kwargs})


@register_model
def broken_size(pretrained: bool = False, **kwargs: Any) -> AoTADMM:
    return create_unrolled(AoTADMM, "broken_size", pretrained, **{**MINIATURE, **kwargs})


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("broken_size", ["input_size"], "fixed_input_size is False, but other sizes are refused"),
        ("broken_gradient", ["gradients"], r"blocks\.0\.unused"),
        ("broken_branch", ["fx", "export", "compilation"], "broken_branch breaks"),
        ("broken_order", ["rectangles"], "bright patch"),
    ],
)
def test_a_broken_model_is_told_what_it_breaks(
    name: str, broken: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "EXPORT_ROWS", [contract.fx, contract.export, contract.compilation])
    with pytest.raises(contract.ContractError, match=reason) as error:
        check_contract(name, exports=name == "broken_branch")
    assert all(f"\n  {row}: " in str(error.value) for row in broken)
