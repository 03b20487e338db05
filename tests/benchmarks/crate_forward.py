"""CRATE forward at 224/16 against the published formulation of the same model, in one process.

    OMP_NUM_THREADS=2 python tests/benchmarks/crate_forward.py [--model crate_small_patch16_224] [--batch-size 8]

The baseline has the same weights, stem and head; its layers multiply three times by the dictionary and write attention
out as softmax(w w^T) w. The two run in turns, so that a busy machine slows both; the table shows the best rounds and
their ratio, published over ours.
"""

import argparse
import time

import timm
import torch
from torch import Tensor

import aotadmm_timm  # noqa: F401
from aotadmm_timm.models.crate import CRATEBlock


class PublishedBlock(CRATEBlock):
    """The layer as the published code computes it."""

    def step(self, z: Tensor) -> tuple[Tensor]:
        x = self.norm1(z)
        w = self.attn.qkv(x).unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2)
        attention = torch.matmul(w, w.transpose(-1, -2)) * self.attn.scale
        w = torch.matmul(attention.softmax(-1), w).transpose(1, 2).flatten(2)
        y = self.norm2(z + self.attn.proj(w))
        d = self.ista.dictionary
        dtd_y = torch.nn.functional.linear(torch.nn.functional.linear(y, d), d.t())
        dt_y = torch.nn.functional.linear(y, d.t())
        step = self.ista.step_size
        return (torch.relu(y + step * (dt_y - dtd_y) - step * self.ista.sparsity),)


def seconds(model: torch.nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    model(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="crate_small_patch16_224")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    setting = f"{args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"{args.model}, batch {args.batch_size}, {setting}")
    print(f"{'precision':10} {'published':>12} {'ours':>12} {'ratio':>7} {'largest difference':>20}")
    for dtype in (torch.float32, torch.bfloat16):
        ours = timm.create_model(args.model, device=args.device, dtype=dtype).eval()
        published = timm.create_model(args.model, device=args.device, dtype=dtype, block_fn=PublishedBlock).eval()
        published.load_state_dict(ours.state_dict())
        x = torch.randn(args.batch_size, *ours.pretrained_cfg["input_size"], device=args.device, dtype=dtype)
        difference = (ours(x) - published(x)).abs().max().item()
        times: dict[str, list[float]] = {"published": [], "ours": []}
        for _ in range(args.repeats):
            times["published"].append(seconds(published, x))
            times["ours"].append(seconds(ours, x))
        a, b = (min(times[key]) for key in ("published", "ours"))
        name = str(dtype).removeprefix("torch.")
        print(f"{name:10} {a * 1e3:9.1f} ms {b * 1e3:9.1f} ms {a / b:7.2f} {difference:20.1e}")


if __name__ == "__main__":
    main()
