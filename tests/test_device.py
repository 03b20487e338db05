"""The package on every device at hand: the CPU always, a GPU where torch sees one (its cases end in [cuda]).

What a device computes is held against float64 on the CPU by separate operations, or against the CPU's own run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from models.weights import fill, images
from scripts import ROOT, call_script
from timm.layers import set_fused_attn
from torch import Tensor, nn

import aotadmm_timm  # noqa: F401  (registers the models)
from aotadmm_timm.data import eval_loader, load_images
from aotadmm_timm.data.batches import MemoryBatches
from aotadmm_timm.data.memory import in_memory
from aotadmm_timm.data.multicrop import DIGITS, MultiCrop
from aotadmm_timm.data.sampler import EpochSampler
from aotadmm_timm.evaluation import extract_features
from aotadmm_timm.layers.dispatch import admm_step, subspace_attention
from aotadmm_timm.losses import SACReg, SIGReg, gaussianity
from aotadmm_timm.losses.directions import orthonormal_slice, unit_directions
from aotadmm_timm.methods import LeJEPA, Views
from aotadmm_timm.models import layer_states
from aotadmm_timm.runs.folder import read_log

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FAMILIES = ["test_aot", "test_aot_admm", "test_crate", "test_crate_alpha", "test_vit_mlpfree"]


@pytest.fixture(params=DEVICES, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device that computes float32 products in float32."""
    backends: Any = torch.backends
    parts = [backends.cuda.matmul, backends.cudnn.conv]
    before = [part.fp32_precision for part in parts]
    for part in parts:
        part.fp32_precision = "ieee"
    yield torch.device(request.param)
    for part, precision in zip(parts, before, strict=True):
        part.fp32_precision = precision


def relative_error(got: Tensor | None, want: Tensor | None) -> float:
    assert got is not None
    assert want is not None
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    return float((got - want).norm() / want.norm())


def exact_model(name: str) -> Any:
    """In float64 on the CPU, every product written out."""
    set_fused_attn(False)
    try:
        return fill(timm.create_model(name, num_classes=0)).double().eval()
    finally:
        set_fused_attn(True)


def features_and_gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    pooled = model(x)
    pooled.float().square().mean().backward()
    return pooled, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("side", [32, 64])  # 17 and 65 tokens: the kernels of short and of long sequences
@pytest.mark.parametrize("name", FAMILIES)
def test_models_compute_the_same(name: str, side: int, device: torch.device) -> None:
    exact = exact_model(name)
    model: Any = fill(timm.create_model(name, num_classes=0)).eval().to(device)
    x = images(3, 3, side, side)
    for each in (exact, model):
        each.set_input_size(img_size=side)
    want, want_gradients = features_and_gradients(exact, x.double())
    got, gradients = features_and_gradients(model, x.to(device))
    assert got.device.type == device.type
    assert relative_error(got, want) < 1e-5
    assert gradients.keys() == want_gradients.keys()
    for key, gradient in gradients.items():
        assert relative_error(gradient, want_gradients[key]) < 1e-4, key


@pytest.mark.parametrize("name", FAMILIES)
def test_models_under_autocast(name: str, device: torch.device) -> None:
    want, want_gradients = features_and_gradients(exact_model(name), images(8, 3, 32, 32).double())
    model = fill(timm.create_model(name, num_classes=0)).eval().to(device)
    with torch.autocast(device.type, torch.bfloat16):
        got, gradients = features_and_gradients(model, images(8, 3, 32, 32).to(device))
    assert relative_error(got, want) < 0.02
    for key, gradient in gradients.items():
        assert gradient.isfinite().all(), key
        assert relative_error(gradient, want_gradients[key]) < 0.2, key


def test_states_are_kept_in_half_precision(device: torch.device) -> None:
    model = timm.create_model("test_aot_admm", num_classes=0).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        states = layer_states(model, images(2, 3, 32, 32).to(device))
    assert {t.dtype for layer in states for t in layer} == {torch.bfloat16}
    assert {t.device.type for layer in states for t in layer} == {device.type}


def test_admm_step_on_states_in_half_precision(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, 3, 17, 48, generator=generator).bfloat16()
    logits, threshold, gain = torch.tensor([0.1, 0.5, -0.4]), torch.tensor([0.3]), torch.linspace(0.5, 1.5, 48)

    def run(where: torch.device, dtype: torch.dtype, **kwargs: Any) -> list[Tensor]:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        z, v, w, m = (t.to(where, dtype).requires_grad_() for t in states)
        parameters = [t.to(where, work).requires_grad_() for t in (logits, threshold, gain)]
        out = admm_step(z, v, w, m, parameters[0].softmax(0), parameters[1], parameters[2], **kwargs)
        assert {t.dtype for t in out} == {dtype}
        torch.stack([t.double().square().mean() * i for i, t in enumerate(out, 1)]).sum().backward()
        return [*out, *(t.grad for t in (z, v, w, m, *parameters) if t.grad is not None)]

    want = run(torch.device("cpu"), torch.float64, fused=False)
    got = run(device, torch.bfloat16)
    assert len(got) == len(want) == 10
    assert max(relative_error(g, w) for g, w in zip(got, want, strict=True)) < 2e-2


@pytest.mark.parametrize("tokens", [5, 17, 65])
def test_attention_in_half_precision(tokens: int, device: torch.device) -> None:
    w = torch.randn(2, 3, tokens, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact, half = w.double().requires_grad_(), w.to(device).requires_grad_()
    want = (0.25 * exact @ exact.mT).softmax(-1) @ exact
    got = subspace_attention(half, 0.25)
    assert got.dtype == torch.bfloat16
    want.square().sum().backward()
    got.float().square().sum().backward()
    assert relative_error(got, want) < 2e-2
    assert relative_error(half.grad, exact.grad) < 3e-2


def published_sigreg(z: Tensor, directions: Tensor) -> Tensor:
    t = torch.linspace(0, 3, 17, dtype=z.dtype)
    phi = torch.exp(-t.square() / 2)
    phase = (z @ directions)[..., None] * t
    gap = (phase.cos().mean(-3) - phi).square() + phase.sin().mean(-3).square()
    return 2 * z.shape[-2] * torch.trapezoid(gap * phi, t).mean()


@pytest.mark.parametrize("tile", [2**8, 2**20])
def test_sigreg_computes_the_same(tile: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussianity, "_TILE", {device.type: tile})
    z = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(0)) * 1.3 + 0.2
    exact, ours = z.double().requires_grad_(), z.to(device).requires_grad_()
    want = published_sigreg(exact, unit_directions(8, 24, 5, 7).double())
    got = SIGReg(24, seed=5)(ours, 7)
    want.backward()
    got.backward()
    assert relative_error(got, want) < 1e-5
    assert relative_error(ours.grad, exact.grad) < 1e-5


def test_sacreg_computes_the_same(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    past, now = torch.randn(2, 24, 10, generator=generator) * 1.3 + 0.2
    exact, ours = now.double().requires_grad_(), now.to(device).requires_grad_()
    rows = torch.cat([exact, past.double()]) @ orthonormal_slice(10, 4, 3, 1, 0).double()
    covariance = rows.T.cov(correction=0)
    logdet = torch.logdet(covariance + 1e-4 * torch.eye(4))
    want = (rows.mean(0).square().sum() + covariance.trace() - logdet - 4) / 8
    term = SACReg(4, buffer_batches=1, seed=3)
    term(past.to(device), 0)
    got = term(ours, 1)
    want.backward()
    got.backward()
    assert relative_error(got, want) < 1e-5
    assert relative_error(ours.grad, exact.grad) < 1e-5


@pytest.mark.parametrize("crop", [MultiCrop(seed=3), DIGITS.replace(seed=3)], ids=["natural", "digits"])
def test_views_are_those_of_each_image_alone(crop: MultiCrop, device: torch.device) -> None:
    smooth = torch.rand(12, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    pixels = (255 * nn.functional.interpolate(smooth, size=(32, 40), mode="bilinear")).to(torch.uint8)
    index = np.arange(100, 112)
    groups = crop(pixels.to(device), 4, index)
    assert {g.device.type for g in groups} == {device.type}
    alone = [crop(pixels[i : i + 1], 4, index[i : i + 1]) for i in range(len(index))]
    for number, group in enumerate(groups):
        want = torch.cat([views[number] for views in alone], 1)
        off = (group.cpu() - want).abs() > 1e-3
        # At the threshold of solarize, and where two channels are equal, rounding decides.
        assert off.float().mean() < 2e-3
    other = crop(pixels.to(device), 5, index)
    assert all(((a - b).abs() > 0.05).float().mean() > 0.3 for a, b in zip(groups, other, strict=True))


def test_first_loss_from_batches_on_the_device(device: torch.device) -> None:
    """Data, views and method together: batch, labels and loss of step 3."""
    source = load_images("digits", "train", num_samples=64)
    kept = in_memory(source)
    torch.manual_seed(0)
    backbone = timm.create_model("test_aot_admm", num_classes=0, dynamic_img_size=True)
    method = LeJEPA(backbone, projector=(32, 16), num_slices=16)
    losses = []  # the first in float64 on the CPU
    for where, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        loader = MemoryBatches(kept, DIGITS, EpochSampler(len(kept), 16), where)
        (batch,) = loader(3, 4)
        assert batch.views[0].device.type == where.type
        assert batch.labels.tolist() == source.labels[batch.indices].tolist()
        views = Views(*(group.to(dtype) for group in batch.views))
        losses.append(deepcopy(method).to(where, dtype)(views, batch.step).loss)
    assert losses[0].dtype == torch.float64
    assert losses[1].device.type == device.type
    assert relative_error(losses[1], losses[0]) < 1e-4


def test_features_of_an_evaluation(device: torch.device) -> None:
    model = fill(timm.create_model("test_aot_admm", num_classes=0))
    loader = eval_loader(load_images("digits", "test", num_samples=50), model, batch_size=20)
    exact, labels = extract_features(exact_model("test_aot_admm"), loader)
    features, same_labels = extract_features(model.to(device), loader)
    assert features.device.type == "cpu"
    assert torch.equal(labels, same_labels)
    assert relative_error(features, exact) < 1e-5


SMALL = ["--model", "test_aot_admm", "--projector", "32", "16", "--num-samples", "640", "--batch-size", "64"]
SMALL += ["--log-every", "1", "--no-evaluate"]
PRETRAIN = [*SMALL, "--epochs", "2", "--num-slices", "16", "--amp", "off"]  # 20 steps


def train(script: str, out: Path, *arguments: str) -> list[float]:
    """The losses that a script logs, one a step."""
    with pytest.MonkeyPatch.context() as patch:
        call_script(patch, f"train/{script}.py", *arguments, "--output", str(out))
    return [row["loss"] for row in read_log(out / "log.jsonl") if "loss" in row]


@pytest.fixture(scope="module")
def trained(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A pretraining of 20 steps on the device, and its losses."""
    out = tmp_path_factory.mktemp("trained") / "run"
    return out, train("lejepa", out, *PRETRAIN, "--device", device.type)


def test_twenty_steps_of_training(trained: tuple[Path, list[float]], tmp_path: Path) -> None:
    out, losses = trained
    assert len(losses) == 20
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    saved = torch.load(out / "checkpoints" / "last.pt", weights_only=True)
    assert all(t.isfinite().all() for t in saved["state"]["method"].values())
    # Rounding differs between devices; 20 steps amplify it.
    again = train("lejepa", tmp_path / "run", *PRETRAIN, "--device", "cpu")
    assert again[0] == pytest.approx(losses[0], rel=1e-5)
    assert again == pytest.approx(losses, rel=2e-3)


def test_a_stopped_training_continues(trained: tuple[Path, list[float]], device: torch.device, tmp_path: Path) -> None:
    arguments = [*PRETRAIN, "--device", device.type]
    assert len(train("lejepa", tmp_path / "run", *arguments, "--stop-after", "1")) == 10
    losses = train("lejepa", tmp_path / "run", *arguments, "--resume", "auto")
    # On one device a step is repeated to the bit on the CPU; GPU kernels may add in another order.
    tolerance = 0 if device.type == "cpu" else 1e-3
    assert losses == pytest.approx(trained[1], rel=tolerance, abs=0)
    states = [torch.load(run / "checkpoints" / "last.pt", weights_only=True) for run in (tmp_path / "run", trained[0])]
    for key, weight in states[0]["state"]["method"].items():
        torch.testing.assert_close(weight, states[1]["state"]["method"][key], rtol=10 * tolerance, atol=tolerance)


def test_other_trainings(trained: tuple[Path, list[float]], device: torch.device, tmp_path: Path) -> None:
    """lambda-JEPA with everything that has a state, in half precision; fine-tuning of the weights found before."""
    few = ["--epochs", "1", "--num-samples", "192", "--device", device.type, "--amp", "bf16"]
    state = ["--target", "ema", "--ema", "0.9", "--projector-buffer", "1", "--backbone-buffer", "1"]
    losses = train("lambda_jepa", tmp_path / "lambda", *SMALL, *few, *state, "--num-global", "2")
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    labelled = ["--checkpoint", str(trained[0]), "--batch-size", "64", "--log-every", "1", "--lr", "1e-3"]
    losses = train("finetune", tmp_path / "finetuned", *labelled, *few)
    assert len(losses) == 3
    assert np.isfinite(losses).all()


@pytest.mark.slow
def test_everything_prepared_for_a_device_runs_at_toy_size(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "tests" / "benchmarks" / "gpu.py"),
        "--toy",
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert {row["status"] for row in results} == {"PASS"}
    assert {row["part"].split()[0] for row in results} == {"machine", "tests", "step", "data", "trial", "pretraining"}
    assert results[-1]["images_per_s"] > 0
    assert results[-1]["hours_for_800_epochs"] > 0
