"""One small file of a data set, for a machine without network: JPEG images as WebDataset shards, compressed together.

    python tests/benchmarks/gpu_data.py hfds/PATH/TO/cifar10 cifar10.tar.xz [--quality 95] [--limit-mib 64]

JPEG without chroma subsampling: of CIFAR-10, 60,000 images, 50 MiB at quality 95 and a PSNR of 40 dB (lossless WebP has
104 MiB). Scores on it are those of slightly other images: good for a look, not for a table. Prints the size of the file
and of the project without bundled weights, and ends with status 1 if together they are above the limit.

Unpacked, the folder is read as `--dataset wds/FOLDER`, with nothing but the standard library and Pillow.
"""

import argparse
import io
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unpack(archive: Path, folder: Path) -> None:
    """Shards and class names into `folder`."""
    with tarfile.open(archive) as outer:
        outer.extractall(folder, filter="data")


def pack(name: str, out: Path, *, quality: int, num_samples: int | None = None) -> None:
    """Write the train and test split of a data set (names as of `load_images`); aside first."""
    import numpy as np
    from PIL import Image

    from aotadmm_timm.data import load_images

    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".part")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for split in ("train", "test"):
            images = load_images(name, split, num_samples=num_samples)
            (folder / "classes.txt").write_text("".join(f"{each}\n" for each in images.classes))
            error, jpeg_bytes = 0.0, 0
            with tarfile.open(folder / f"{split}.tar", "w") as shard:
                for index in range(len(images)):
                    picture, label = images[index]
                    buffer = io.BytesIO()
                    picture.save(buffer, "jpeg", quality=quality, subsampling=0)
                    decoded = Image.open(io.BytesIO(buffer.getvalue()))
                    error += float(np.square(np.asarray(picture, float) - np.asarray(decoded, float)).mean())
                    jpeg_bytes += len(buffer.getvalue())
                    for suffix, content in (("jpg", buffer.getvalue()), ("cls", str(label).encode())):
                        member = tarfile.TarInfo(f"{index:06d}.{suffix}")
                        member.size = len(content)
                        shard.addfile(member, io.BytesIO(content))
            psnr = 10 * math.log10(255**2 * len(images) / max(error, 1e-9))
            print(f"{split}: {len(images)} images, {jpeg_bytes / len(images):.0f} bytes each, PSNR {psnr:.1f} dB")
        with tarfile.open(aside, "w:xz") as outer:  # the headers of files and shards, all alike, come to nothing
            for path in sorted(folder.iterdir()):
                outer.add(path, path.name)
    os.replace(aside, out)


def project_bytes(without: Path) -> int:
    """Files that are tracked or not ignored, without bundled weights and one more file."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    left_out = ROOT / "aotadmm_timm" / "weights"
    paths = [ROOT / name for name in names if name]
    return sum(
        path.stat().st_size
        for path in paths
        if path.is_file() and left_out not in path.parents and path.resolve() != without.resolve()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="as of train/lejepa.py")
    parser.add_argument("output", type=Path, help="the file, .tar.xz")
    parser.add_argument("--quality", type=int, default=95)
    parser.add_argument("--num-samples", type=int, help="N images of each split only")
    parser.add_argument("--limit-mib", type=float, default=64, help="of file and project together")
    args = parser.parse_args()
    try:
        pack(args.dataset, args.output, quality=args.quality, num_samples=args.num_samples)
    except (OSError, ValueError) as err:
        parser.exit(2, f"error: {err}\n")
    data, project = args.output.stat().st_size / 2**20, project_bytes(args.output) / 2**20
    print(f"{args.output}: {data:.1f} MiB, project {project:.1f} MiB, together {data + project:.1f} MiB")
    if data + project > args.limit_mib:
        print(f"error: above {args.limit_mib:.0f} MiB; lower --quality or --num-samples", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
