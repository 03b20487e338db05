"""The base: what it refuses, how blocks are called, and a user's own layer in an outside file."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from models.weights import images
from readme import files
from torch import Tensor, nn

import aotadmm_timm
from aotadmm_timm.models import UnrolledBlock, UnrolledTransformer, layer_states


def test_hooks_see_steps() -> None:
    model = timm.create_model("test_aot_admm")
    seen: list[int] = []
    model.blocks[1].register_forward_hook(lambda module, args, out: seen.append(len(args) + len(out)))
    model(images(1, 3, 32, 32))
    assert seen == [6]


def test_states_need_an_unrolled_model() -> None:
    with pytest.raises(ValueError, match="got MLPFreeViT"):
        layer_states(timm.create_model("test_vit_mlpfree"), images(1, 3, 32, 32))


@pytest.mark.parametrize("feature_cls", ["hook", "fx", "list"])
def test_hooks_and_graph_nodes_are_no_readout(feature_cls: str) -> None:
    with pytest.raises(ValueError, match=f"got '{feature_cls}'"):
        timm.create_model("test_aot_admm", features_only=True, feature_cls=feature_cls)


def test_bad_intermediates() -> None:
    model, x = timm.create_model("test_aot_admm"), images(1, 3, 32, 32)
    with pytest.raises(ValueError, match="got 'NHWC'"):
        model.forward_intermediates(x, output_fmt="NHWC")
    with pytest.raises(ValueError, match="mask"):
        model.forward_intermediates(x, attn_mask=torch.ones(17, 17))


def test_two_states_and_matrices_that_are_not_decayed() -> None:
    """A block of another number of states, with its own word on weight decay."""

    class Momentum(UnrolledBlock):
        def __init__(self, dim: int, **unused: object) -> None:
            super().__init__()
            self.mix = nn.Parameter(torch.eye(dim))
            self.rate = nn.Parameter(torch.ones(1))

        def no_weight_decay(self) -> set[str]:
            return super().no_weight_decay() | {"mix"}

        def step(self, x: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
            momentum = 0.9 * momentum + x @ self.mix
            return x - self.rate * momentum, momentum

    class Model(UnrolledTransformer):
        def init(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return tokens, torch.zeros_like(tokens)

    model = Model(block_fn=Momentum, img_size=32, patch_size=8, embed_dim=16, depth=2, num_classes=0)
    states = layer_states(model, images(2, 3, 32, 32))
    (x, m), (x1, m1) = states[0], states[1]
    torch.testing.assert_close(m1, 0.9 * m + x)
    torch.testing.assert_close(x1, x - m1)
    assert {"blocks.1.mix", "blocks.0.rate", "pos_embed"} <= model.no_weight_decay()


def test_own_layer_in_an_outside_file(tmp_path: Path) -> None:
    """README's example, copied out of the tree and run as a program of its own."""
    own = tmp_path / "over_relaxed.py"
    own.write_text(files()["over_relaxed.py"])
    assert len(own.read_text().splitlines()) <= 60
    program = """
import over_relaxed, timm, torch
from aotadmm_timm import check_contract
from aotadmm_timm.models import layer_states
rows = check_contract("over_relaxed_tiny", depth=3, embed_dim=48, num_heads=3)
model = timm.create_model("over_relaxed_tiny", alpha=1.0).eval()
plain = timm.create_model("aot_admm_tiny").eval()
plain.load_state_dict(model.state_dict())
x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
states, expected = layer_states(model, x), layer_states(plain, x)
assert len(states) == 13 and [s.shape for s in states[-1]] == [(2, 17, 384)] * 3
for got, want in zip(states, expected):  # alpha = 1 is plain ADMM, here without its fused step
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
relaxed = timm.create_model("over_relaxed_tiny", alpha=1.6).eval()
relaxed.load_state_dict(model.state_dict())
assert not torch.equal(relaxed(x), model(x))
print(*rows)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert {"classifier", "states", "torchscript", "tracing", "onnx"} <= set(run.stdout.split())


def test_public_names() -> None:
    assert callable(aotadmm_timm.check_contract)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = aotadmm_timm.nonsense


@pytest.mark.parametrize("name", ["test_aot_admm", "test_aot", "test_crate", "test_crate_alpha", "test_aot_tost"])
@pytest.mark.parametrize(
    "kwargs",
    [
        {"class_token": False, "global_pool": "avg"},
        {"reg_tokens": 4},
        {"drop_path_rate": 0.2, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1, "patch_drop_rate": 0.3},
        {"pos_drop_rate": 0.1, "drop_rate": 0.1},
        {"global_pool": "map"},
        {"global_pool": "avg", "fc_norm": True, "pool_include_prefix": True},
        {"pos_embed": "none"},
        {"no_embed_class": True},
        {"pre_norm": True},
        {"dynamic_img_size": True, "dynamic_img_pad": True},
    ],
    ids=lambda kwargs: "-".join(kwargs),
)
def test_arguments_of_timms_vision_transformer(name: str, kwargs: dict) -> None:
    torch.manual_seed(0)  # of two images, drop_path can drop both
    model = timm.create_model(name, num_classes=4, **kwargs)
    out = model(images(2, 3, 30, 32) if "dynamic_img_pad" in kwargs else images(2, 3, 32, 32))
    assert out.shape == (2, 4)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(block.attn.qkv.weight.grad.abs().sum() > 0 for block in model.blocks)
