"""What runs on a GPU, without one: shapes and devices of models, methods, SIGReg's gradient, views and online probe.

Torch's fake tensors have a device and no data. An operation on tensors of two devices raises, as on a GPU, and so does
whatever would have to wait for a value. Backward passes need a real device: `test_device.py`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from aotadmm_timm.data.multicrop import DIGITS, MultiCrop
from aotadmm_timm.engine.online_probe import OnlineProbe
from aotadmm_timm.losses import gaussianity, harmonics
from aotadmm_timm.methods import BYOL, DINO, LambdaJEPA, LeJEPA, Method, Plan, SimCLR, SimDINO, VICReg, Views


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A mode in which device "cuda" exists, with autocast; constants that were made in it are forgotten.

    Models are built outside it: their constructors read values, such as rates of drop path.
    """
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation=True: True)
    harmonics._mixing.cache_clear()  # what it keeps for a real GPU
    yield FakeTensorMode()
    harmonics._mixing.cache_clear()


def on_gpu(module: Any) -> Any:
    """The module with empty parameters and buffers on the GPU, in place."""
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                fresh = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
                each._parameters[name] = nn.Parameter(fresh, requires_grad=parameter.requires_grad)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    return module


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", ["test_aot", "test_aot_admm", "test_crate", "test_crate_alpha", "test_vit_mlpfree"])
def test_models(fake: FakeTensorMode, name: str, side: int, dtype: torch.dtype | None) -> None:
    model = timm.create_model(name, num_classes=5, img_size=side)
    with fake, torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
        out = on_gpu(model)(torch.empty(3, 3, side, side, device="cuda"))
    assert (out.shape, out.device.type, out.dtype) == ((3, 5), "cuda", dtype or torch.float32)


@pytest.mark.parametrize(
    "make",
    [
        LeJEPA,
        partial(LeJEPA, form="sum", target="all", pool_views=True),
        SimCLR,
        BYOL,
        partial(DINO, prototypes=32),
        SimDINO,
        VICReg,
        LambdaJEPA,
        partial(LambdaJEPA, target="ema"),
    ],
)
def test_methods(fake: FakeTensorMode, make: Any) -> None:
    backbone = timm.create_model("test_aot_admm", num_classes=0, dynamic_img_size=True)
    method: Method = make(backbone, projector=(32, 16))
    with fake:
        on_gpu(method)
        method.begin(Plan(2, 1, 8, 2, 4))
        views = Views(torch.empty(2, 8, 3, 32, 32, device="cuda"), torch.empty(4, 8, 3, 16, 16, device="cuda"))
        for step in range(2):
            with torch.autocast("cuda", torch.bfloat16):
                loss = method(views, step).loss
    assert (loss.shape, loss.device.type, loss.dtype) == ((), "cuda", torch.float32)


def test_gradient_of_sigreg(fake: FakeTensorMode) -> None:
    """The one hand-written backward that a GPU runs; the engine of autograd needs a real one, so it is called here."""

    class Context:
        needs_input_grad = (True, False, False, False, False, False)

        def save_for_backward(self, *tensors: Tensor) -> None:
            self.saved_tensors = tensors

    ctx: Any = Context()
    with fake, torch.no_grad():  # as the engine calls a backward
        z, directions = torch.empty(8, 64, 16, device="cuda"), torch.empty(16, 32, device="cuda")
        gaussianity._EppsPulley.forward(ctx, z, directions, 17, 5.0, 64, False)
        gradient, *others = gaussianity._EppsPulley.backward(ctx, torch.ones((), device="cuda"))
    assert (gradient.shape, gradient.device.type) == (z.shape, "cuda")
    assert others == [None] * 5


@pytest.mark.parametrize("crop", [MultiCrop(), DIGITS], ids=["natural", "digits"])
def test_views(fake: FakeTensorMode, crop: MultiCrop) -> None:
    with fake:
        groups = crop(torch.empty(12, 3, 32, 40, dtype=torch.uint8, device="cuda"), 4, np.arange(100, 112))
    assert {(g.shape[1], g.device.type, g.dtype) for g in groups} == {(12, "cuda", torch.float32)}


def test_online_probe(fake: FakeTensorMode) -> None:
    probe = OnlineProbe(64, 10)
    with fake:
        accuracy = on_gpu(probe)(torch.empty(8, 64, device="cuda"), torch.zeros(8, dtype=torch.long))
    assert accuracy.device.type == "cuda"


def test_a_mixture_of_devices_and_a_wait_would_be_noticed(fake: FakeTensorMode) -> None:
    with fake:
        x = torch.empty(3, device="cuda")
        with pytest.raises(RuntimeError, match="device"):
            x + torch.empty(3)
        with pytest.raises(DataDependentOutputException):
            float(x.sum())
