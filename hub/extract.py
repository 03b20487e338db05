"""Extract image features into one file: one row per image in sorted order, or the image is listed as failed.

    python hub/extract.py photos/ photos.parquet --model RUN/encoder     # columns path, label (if known), feature
    python hub/extract.py list.txt out.safetensors --model hf-hub:ORG/NAME --normalize --center
    python hub/extract.py hfds/ID_OR_PATH out.parquet --model RUN --split test    # also wds/PATH, torch/NAME, digits
    torchrun --nproc_per_node=4 hub/extract.py photos/ photos.parquet --model RUN # the same rows

A killed run continues where it stopped. Exit status 1 if images failed; the others are written all the same.
`aotadmm_timm.hub.feature_file.read_features(OUT)` reads the file back.
"""

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import DEFAULT_MODEL, POOLS


@dataclass(frozen=True)
class Config:
    images: str = option(None, "folder, .txt file with one path per line, or data set (hfds/, wds/, torch/, digits)")
    out: str = option(None, "file to write; .parquet or .safetensors")
    model: str = option(DEFAULT_MODEL, "registered name, run or model folder, or hf-hub:ORG/NAME[@REVISION]")
    import_: str | None = option(None, "Python file or module to import first (registers your own models)")
    batch_size: int = option(64, "images per forward pass")
    layers: tuple[int, ...] = option((), "blocks to take features from, e.g. 3 7 -1; default: the model's own features")
    pool: str = option("model", "how tokens become one vector; none keeps them all", choices=("model", *POOLS))
    normalize: bool = option(False, "scale features to length 1, after centring")
    center: bool = option(False, "subtract the mean over all rows; it is stored in the file, for queries")
    fp16: bool = option(False, "store float16")
    update: bool = option(False, "keep the rows of an existing OUT and embed only what is new or changed")
    random_init: bool = option(False, "allow a model without weights")
    split: str = option("train", "split of a data set")
    input_key: str | None = option(None, "image column of a Hugging Face data set")
    target_key: str | None = option(None, "label column of a Hugging Face data set")
    max_pixels: int | None = option(None, "largest image that is decoded; Pillow's limit of 89 million if not given")
    sample_range: tuple[float, float] | None = option(
        None, "black and white of floating-point and 32-bit images; found in each file if not given"
    )
    workers: int = option(-1, "processes that decode images; -1: one for each spare core, at most 8")
    device: str | None = option(None, "torch device; default: the GPU if there is one")


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("images", "out"))
    import torch

    from aotadmm_timm import distributed
    from aotadmm_timm.extractor import FeatureExtractor
    from aotadmm_timm.hub.feature_file import check_suffix
    from aotadmm_timm.hub.images import open_images
    from aotadmm_timm.hub.pipeline import extract_file
    from aotadmm_timm.plugin import import_plugin

    if cfg.import_:
        import_plugin(cfg.import_)
    check_suffix(Path(cfg.out))
    source = open_images(
        cfg.images,
        split=cfg.split,
        input_key=cfg.input_key,
        target_key=cfg.target_key,
        max_pixels=cfg.max_pixels,
        sample_range=cfg.sample_range,
    )
    device = distributed.init_distributed(cfg.device)
    extractor = FeatureExtractor(
        cfg.model,
        layers=cfg.layers,
        pool=None if cfg.pool == "model" else cfg.pool,
        batch_size=cfg.batch_size,
        device=device,
        random_init=cfg.random_init,
    )
    main_rank = distributed.is_main()
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr) if main_rank else None
    if main_rank:
        print(describe(cfg, extractor))
    try:
        report = extract_file(
            source,
            Path(cfg.out),
            extractor,
            normalize=cfg.normalize,
            center=cfg.center,
            fp16=cfg.fp16,
            update=cfg.update,
            workers=cfg.workers if cfg.workers >= 0 else min(8, (os.cpu_count() or 1) - 1),
        )
    except OSError as error:
        raise UserError(f"{error.filename or cfg.out}: {error.strerror or error}") from error
    if main_rank:
        print(f"{cfg.out}: {report.rows:,} rows, {report.computed:,} images embedded, {len(report.failed):,} failed")
        for path, reason in report.failed.items():
            print(f"failed: {path}: {reason}", file=sys.stderr)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if report.failed and main_rank:
        sys.exit(1)


def describe(cfg: Config, extractor: Any) -> str:
    """The model, the data behind its weights, and the resolution it sees."""
    name = extractor.origin.name
    pretrained = extractor.model.pretrained_cfg
    default = " (default)" if cfg.model == DEFAULT_MODEL else ""
    weights = "untrained" if cfg.random_init else f"weights {pretrained.get('tag') or name} (method and data)"
    height, width = extractor.input_size
    return f"model {name}{default}, {weights}, input {width}x{height}, features {extractor.shape}"


if __name__ == "__main__":
    run(main)
