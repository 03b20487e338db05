"""Views a second: batched on tensors (aotadmm_timm.data) against torchvision v2 on single images in worker processes.

    python tests/benchmarks/data.py [--images 4096] [--threads 2] [--rounds 3]

Both make the CIFAR recipe, 2 views of 32x32 and 6 of 16x16 with jitter, gray, blur and solarize, from random 32x32
images. Rounds alternate, so that a busy machine slows both; the ratio of the best rounds is what counts.
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from aotadmm_timm.data.batches import MemoryBatches
from aotadmm_timm.data.memory import PixelImages
from aotadmm_timm.data.multicrop import MultiCrop
from aotadmm_timm.data.sampler import EpochSampler


def recipe(size: int, scale: tuple[float, float]) -> v2.Compose:
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=scale, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(3, (0.1, 2.0))], p=0.5),
            v2.RandomSolarize(128, p=0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


class PerImage(Dataset):
    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels
        self.large, self.small = recipe(32, (0.3, 1.0)), recipe(16, (0.05, 0.3))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.pixels[index]
        large = torch.stack([self.large(image) for _ in range(2)])
        return large, torch.stack([self.small(image) for _ in range(6)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    small = torch.randint(0, 256, (args.images, 3, 8, 8)).float()
    pixels = torch.nn.functional.interpolate(small, size=32, mode="bicubic").clamp(0, 255).to(torch.uint8)

    images = PixelImages("random", "train", [0] * args.images, ["any"], pixels.numpy())

    def ours() -> int:
        sampler = EpochSampler(args.images, args.batch_size)
        batches = MemoryBatches(images, MultiCrop(), sampler, torch.device("cpu"))
        return sum(len(batch.indices) for batch in batches(0, sampler.batches_per_epoch))

    # A quarter of the images: the ratio does not depend on the number, and workers start once.
    loader = DataLoader(PerImage(pixels[: args.images // 4]), args.batch_size, num_workers=2, persistent_workers=True)

    def torchvision() -> int:
        return sum(len(large) for large, _ in loader)

    ways = {"aotadmm_timm, in memory": ours, "torchvision v2, 2 workers": torchvision}
    best = dict.fromkeys(ways, 0.0)
    for _ in range(args.rounds + 1):  # the first round warms up
        for name, way in ways.items():
            began = time.perf_counter()
            best[name] = max(best[name], way() / (time.perf_counter() - began))
    slowest = min(best.values())
    for name, rate in best.items():
        print(f"{name:28} {rate:9.0f} images/s  {8 * rate:9.0f} views/s  x{rate / slowest:.1f}")


if __name__ == "__main__":
    main()
