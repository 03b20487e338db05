"""Pinned outputs of the test_* variants: a change of the numbers is noticed, whatever the cause.

`python tests/models/test_golden.py` writes them anew, after a change that is meant.
"""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import aotadmm_timm  # noqa: F401

GOLDEN = Path(__file__).parent / "data" / "golden.safetensors"
NAMES = sorted(timm.list_models("test_*", module=["aot", "aot_admm", "aot_tost", "crate", "tost", "vit_mlpfree"]))


def outputs(name: str) -> dict[str, Tensor]:
    """Pooled features, last map and gradient of the first layer's first parameter, from seeded weights and input."""
    from models.weights import fill, images

    model = fill(timm.create_model(name)).eval()
    pooled = model(images(2, 3, 32, 32))
    pooled.square().sum().backward()
    first = next(model.blocks[0].attn.parameters())
    return {"pooled": pooled.detach().contiguous(), "gradient": first.grad[:2].clone()}


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    golden = load_file(GOLDEN)
    for key, value in outputs(name).items():
        want = golden[f"{name}.{key}"]
        torch.testing.assert_close(value, want, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{name} {key}: {m}")


def test_every_family_is_pinned() -> None:
    families = ["aot", "aot_admm", "aot_admm_tost", "aot_tost", "crate", "crate_alpha", "tost", "vit_mlpfree"]
    assert [f"test_{family}" for family in families] == NAMES
    assert {key.split(".")[0] for key in load_file(GOLDEN)} == set(NAMES)


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    save_file({f"{name}.{key}": t for name in NAMES for key, t in outputs(name).items()}, GOLDEN)
