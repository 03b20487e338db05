"""Convert a published CRATE or CRATE-alpha checkpoint into a timm model folder.

    python hub/convert.py crate_small.pth converted/ --model crate_small_patch16_224

Then `import aotadmm_timm, timm; timm.create_model("local-dir:converted", pretrained=True)`. No checkpoint holds its
number of heads; it is known for the published layouts, else give --num-heads.
"""

from dataclasses import dataclass

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.errors import UserError


@dataclass(frozen=True)
class Config:
    source: str = option(None, "published checkpoint (.pth, .safetensors)")
    out: str = option(None, "folder to write model.safetensors and config.json to; new or empty")
    model: str | None = option(None, "registered model name, of the checkpoint's patch and image size")
    num_heads: int | None = option(None, "attention heads, for a layout that is not a published one")


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("source", "out"))
    if cfg.model is None:
        raise UserError("--model is needed: the registered name of the checkpoint's architecture")
    from aotadmm_timm.hub.published_crate import convert

    folder = convert(cfg.source, cfg.out, model=cfg.model, num_heads=cfg.num_heads)
    print(f"written to {folder}")


if __name__ == "__main__":
    run(main)
