"""Extraction against the model's own forward pass, and memory against the number of images.

    python tests/benchmarks/extract.py [--model aot_admm_tiny] [--images 1024] [--many 100000]

The first table: images per second of `model(batch)` on prepared tensors, and of the whole extraction (reading,
decoding, preprocessing, embedding, writing) of as many small PNG files with decoding workers; target: at least 90 %.
Both take turns in one process; the first turn warms up. On a machine that does other work too, the share of an
extraction's time that is spent inside the forward pass is the steadier number, since both are slowed alike. The second:
peak memory of one process that extracts n images; target: flat.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aotadmm_timm import FeatureExtractor
from aotadmm_timm.hub.images import open_images
from aotadmm_timm.hub.pipeline import extract_file

TURNS = 9

MEMORY = """
import sys
from pathlib import Path
from aotadmm_timm import FeatureExtractor
from aotadmm_timm.hub.images import open_images
from aotadmm_timm.hub.pipeline import extract_file
folder, out, model = sys.argv[1:]
report = extract_file(open_images(folder), Path(out), FeatureExtractor(model, random_init=True, batch_size=64))
# Not getrusage: its maximum includes the parent that this process was started from.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(report.rows, int(peak) / 1024)
"""


def write_images(folder: Path, count: int, side: int) -> None:
    """`count` files, links to 16 different pictures: what is measured is reading and decoding, not the disk."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    originals = []
    for i in range(16):
        originals.append(folder.parent / f"{folder.name}-{i}.png")
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(originals[-1])
    for i in range(count):
        os.link(originals[i % 16], folder / f"{i:07d}.png")


def compare_rates(model: str, count: int, batch_size: int, workers: int, folder: Path) -> None:
    extract = FeatureExtractor(model, random_init=True, batch_size=batch_size)
    source = open_images(str(folder))
    batch = torch.stack([extract.prepare(source.read(i)) for i in range(batch_size)])
    embed, out, inside = extract.embed, folder.parent / "out.safetensors", 0.0

    def timed(images: torch.Tensor) -> torch.Tensor:
        nonlocal inside
        began = time.perf_counter()
        features = embed(images)
        inside += time.perf_counter() - began
        return features

    rows = []
    for _ in range(TURNS + 1):
        began = time.perf_counter()
        for start in range(0, count, batch_size):
            embed(batch[: count - start])
        forward = time.perf_counter() - began
        inside, extract.embed = 0.0, timed  # type: ignore[method-assign]
        began = time.perf_counter()
        extract_file(source, out, extract, workers=workers)
        whole = time.perf_counter() - began
        extract.embed = embed  # type: ignore[method-assign]
        out.unlink()
        rows.append((count / forward, count / whole, forward / whole, inside / whole))
    print(f"{model}, {count} images, batch {batch_size}, {workers} workers, {torch.get_num_threads()} threads")
    print("| | median | min | max |\n|---|---|---|---|")
    names = ("forward [images/s]", "extraction [images/s]", "extraction / forward", "share of extraction in forward")
    for name, values in zip(names, zip(*rows[1:], strict=True), strict=True):
        print(f"| {name} | {statistics.median(values):.4g} | {min(values):.4g} | {max(values):.4g} |")


def compare_memory(counts: list[int], model: str, folder: Path) -> None:
    print("\n| images | peak memory [MiB] |\n|---|---|")
    for count in counts:
        images = folder / f"many-{count}"
        write_images(images, count, side=8)
        command = [sys.executable, "-c", MEMORY, str(images), str(folder / f"{count}.parquet"), model]
        rows, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"| {int(rows):,} | {float(peak):.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="aot_admm_tiny")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--memory-model", default="test_aot_admm")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "small"
        write_images(folder, given.images, side=32)
        compare_rates(given.model, given.images, given.batch_size, given.workers, folder)
        if given.many:
            compare_memory([given.many // 100, given.many // 10, given.many], given.memory_model, Path(scratch))


if __name__ == "__main__":
    main()
