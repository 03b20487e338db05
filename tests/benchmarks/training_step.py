"""A LeJEPA training step (forward, backward, AdamW) against the plain form of the same model, in one process.

    python tests/benchmarks/training_step.py [--models aot_admm_tiny ...] [--threads 2] [--compile] [--device cuda]

2 views of 32 and 6 of 16 pixels, batch 256, bf16 autocast, projector 384-1024-64. The plain form has the same weights;
its layers are written from the published formulas with `scaled_dot_product_attention` and separate elementwise
operations on float32 states. Forms take turns; the best of their rounds counts. GFLOP are counted (2 per multiply-add,
the matrix products of forward and backward); `share` is their rate over that of a large bf16 matrix product,
timed between the rounds. Memory is the growth of the process's peak in one step, each form in a process of its own,
where the allocator returns at once what is freed. The last column is SIGReg's share, forward and backward, of the step.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
import torch.nn.functional as F
from memory import high_water_mib
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import aotadmm_timm  # noqa: F401
from aotadmm_timm.engine.backbone import compile_model
from aotadmm_timm.layers.subspace_attention import MSSA
from aotadmm_timm.losses import SIGReg
from aotadmm_timm.methods.lejepa import LeJEPA
from aotadmm_timm.methods.multi_view import Views
from aotadmm_timm.models.aot import AoTBlock
from aotadmm_timm.models.aot_admm import AoTADMMBlock
from aotadmm_timm.models.crate import CRATEBlock


def plain_attention(layer: MSSA, x: Tensor) -> Tensor:
    w = layer.qkv(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    w = F.scaled_dot_product_attention(w, w, w, scale=layer.scale)
    return layer.proj(w.transpose(1, 2).flatten(2))


class PlainAoT(AoTBlock):
    def step(self, z: Tensor) -> tuple[Tensor]:
        return (z + plain_attention(self.attn, self.norm(z)),)


class PlainCRATE(CRATEBlock):
    def step(self, z: Tensor) -> tuple[Tensor]:
        y = self.norm2(z + plain_attention(self.attn, self.norm1(z)))
        d, step = self.ista.dictionary, self.ista.step_size
        return (F.relu(y + step * (F.linear(y, d.t()) - F.linear(F.linear(y, d), d.t())) - step * self.ista.sparsity),)


class PlainAoTADMM(AoTADMMBlock):
    def step(self, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, v, w = z.float(), v.float(), w.float()
        a, b, c = self.coefficients()
        z = a * z + b * plain_attention(self.attn, self.norm(z)) + c * (v - w)
        z = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + self.eps) * self.gain
        u = z + w
        v = F.relu(u - self.threshold())
        w = u - v
        return z, v, w * torch.rsqrt(w.square().mean(-1, keepdim=True) + self.eps)


PLAIN: dict[str, Any] = {"aot_admm": PlainAoTADMM, "crate": PlainCRATE, "aot": PlainAoT}


def plain_block(model: str) -> Any:
    family = next((name for name in sorted(PLAIN, key=len, reverse=True) if model.startswith(name + "_")), None)
    if family is None:
        raise SystemExit(f"error: no plain form of {model}; there is one of {', '.join(PLAIN)}")
    return PLAIN[family]


class Step:
    """One form of one model with its optimizer; calling it trains on a batch and gives the loss."""

    def __init__(self, model: str, form: str, device: str, batch_size: int) -> None:
        torch.manual_seed(0)
        kwargs = {"block_fn": plain_block(model)} if form == "plain" else {}
        backbone = timm.create_model(model, num_classes=0, dynamic_img_size=True, **kwargs)
        self.method = LeJEPA(backbone, projector=(1024, 64)).to(device)
        if form == "compiled":
            compile_model(backbone, torch.device(device))
        self.optimizer = torch.optim.AdamW(self.method.parameters(), lr=5e-4, fused=True)
        generator = torch.Generator().manual_seed(1)
        crops = [torch.randn(n, batch_size, 3, s, s, generator=generator).to(device) for n, s in ((2, 32), (6, 16))]
        self.views, self.device = Views(*crops), device

    def __call__(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16):
            loss: Tensor = self.method(self.views, 0).loss
        loss.backward()
        self.optimizer.step()
        return loss.item()


def seconds(call: Callable[[], Any], device: str) -> float:
    began = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def gflop_per_image(model: str) -> float:
    """Of a step, counted on four images with every product written out."""
    set_fused_attn(False)
    step = Step(model, "ours", "cpu", 4)
    set_fused_attn(True)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 4e9


def peak_mib(model: str, form: str, device: str, batch_size: int, threads: int) -> float:
    torch.set_num_threads(threads)
    step = Step(model, form, device, batch_size)
    if device.startswith("cuda"):
        step()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    Step(model, form, device, 4)()  # libraries allocate what they need
    before = high_water_mib()
    step()
    return high_water_mib() - before


class SIGRegAlone:
    def __init__(self, device: str, batch_size: int) -> None:
        self.regularizer = SIGReg(256)
        self.z = torch.randn(8, batch_size, 64, device=device, requires_grad=True)

    def __call__(self) -> None:
        self.regularizer(self.z, 0).backward()


class MatrixProduct(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.side = 2048 if device == "cpu" else 8192  # a GPU is done with the smaller before the next launch
        self.a = torch.randn(self.side, self.side, device=device).bfloat16()

    def forward(self) -> Tensor:
        return self.a @ self.a


def measure(model: str, forms: list[str], args: argparse.Namespace) -> dict[str, float]:
    calls: dict[str, Callable[[], Any]] = {form: Step(model, form, args.device, args.batch_size) for form in forms}
    losses = {form: calls[form]() for form in forms}  # a warm-up, and the same function in every form
    for form, loss in losses.items():
        assert abs(loss - losses["plain"]) < 0.01 * losses["plain"], (form, losses)
    product = MatrixProduct(args.device)
    calls |= {"sigreg": SIGRegAlone(args.device, args.batch_size), "product": product}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(args.rounds):
        for name, call in calls.items():
            best[name] = min(best[name], *(seconds(call, args.device) for _ in range(2)))
    best["product rate"] = 2 * product.side**3 / best["product"] / 1e9
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", default=["aot_admm_tiny", "aot_admm_base", "crate_tiny", "aot_tiny"],
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--compile", action="store_true", help="one more form: ours under torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)  # for the processes that measure memory
    forms = ["plain", "ours", *(["compiled"] if args.compile else [])]
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, batch {args.batch_size}, images/s\n")
    print(
        f"{'':16}{'GFLOP/image':>12}{'matmul GFLOP/s':>16}{'form':>10}{'images/s':>10}{'ratio':>7}{'share':>7}"
        f"{'MiB':>7}{'SIGReg':>8}"
    )
    for model in args.models:
        gflop, best = gflop_per_image(model), measure(model, forms, args)
        rate = best["product rate"]
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            memory = {f: pool.apply(peak_mib, (model, f, args.device, args.batch_size, args.threads)) for f in forms}
        for form in forms:
            speed = args.batch_size / best[form]
            print(
                f"{model:16}{gflop:12.2f}{rate:16.0f}{form:>10}{speed:10.1f}{best['plain'] / best[form]:7.2f}"
                f"{speed * gflop / rate:7.0%}{memory[form]:7.0f}{best['sigreg'] / best[form]:8.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
