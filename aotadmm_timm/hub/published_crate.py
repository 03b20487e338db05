"""Published CRATE and CRATE-alpha checkpoints as timm model folders."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from timm.models import save_for_hf
from torch import Tensor

from aotadmm_timm.errors import UserError, WeightsMismatch
from aotadmm_timm.models.checkpoint import check_fit
from aotadmm_timm.models.official import translate
from aotadmm_timm.models.unrolled import UnrolledTransformer
from aotadmm_timm.pretrained import build_model, read_weights
from aotadmm_timm.pretrained.building import check_name


class Layout(NamedTuple):
    """What tells published checkpoints apart: stem ("linear" or "conv"), patch pixels, width, depth, two-layer head."""

    stem: str
    patch: int
    width: int
    depth: int
    demo_head: bool


# The number of heads is in no state dict; these are the ones of the published code.
KNOWN_HEADS = {
    Layout("linear", 16, 384, 12, False): 6,  # CRATE-Tiny
    Layout("linear", 16, 576, 12, False): 12,  # CRATE-Small
    Layout("linear", 16, 768, 12, False): 12,  # CRATE-Base
    Layout("linear", 16, 1024, 24, False): 16,  # CRATE-Large
    Layout("linear", 8, 768, 12, True): 6,  # segmentation demo, crate-demo.pth
    Layout("conv", 16, 768, 12, False): 12,  # CRATE-alpha-B/16
    Layout("conv", 14, 1024, 24, False): 16,  # CRATE-alpha-L/14, CLIPA-L/14
    Layout("conv", 14, 1280, 32, False): 16,  # CRATE-alpha CLIPA-H/14
}


def layout_of(state: dict[str, Tensor]) -> Layout:
    """Layout of a bare published state dict. Raises UserError if it is no CRATE or CRATE-alpha."""
    native = translate(state)
    if native is state or "patch_embed.proj.weight" not in native:
        raise UserError(f"neither a CRATE nor a CRATE-alpha checkpoint: its first names are {list(state)[:3]}")
    stem = native["patch_embed.proj.weight"]
    depth = 1 + max(int(key.split(".")[1]) for key in native if key.startswith("blocks."))
    if stem.ndim == 4:
        return Layout("conv", stem.shape[-1], stem.shape[0], depth, False)
    demo_head = "head.weight" in state and "mlp_head.1.weight" in state
    return Layout("linear", round((stem.shape[1] / 3) ** 0.5), stem.shape[0], depth, demo_head)


def convert(source: str | Path, out: str | Path, *, model: str, num_heads: int | None = None) -> Path:
    """Convert a published checkpoint into a folder that `timm.create_model("local-dir:OUT", pretrained=True)` loads.

    Args:
        source: official .pth or .safetensors file, as published.
        out: folder to write `model.safetensors` and `config.json` to; must not exist or be empty.
        model: registered name of the architecture, of the checkpoint's own patch and image size.
        num_heads: positive; needed unless the layout is a published one; recorded in config.json.
    Returns: the folder.
    Raises: UserError if the head count is unknown or the folder is not empty, ModelNotFound, DamagedFile,
        WeightsMismatch (tensors that do not fit are named with both shapes).
    """
    source, out = Path(source), Path(out)
    if num_heads is not None and num_heads < 1:
        raise UserError(f"--num-heads must be positive, got {num_heads}")
    check_name(model)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder")
    state = read_weights(source)
    try:
        layout = layout_of(state)
    except UserError as error:
        raise WeightsMismatch(f"{source}: {error}") from None
    heads = KNOWN_HEADS.get(layout) if num_heads is None else num_heads
    if heads is None:
        raise UserError(
            f"{source}: no published layout ({layout.width} wide, {layout.depth} deep, patch {layout.patch}, "
            f"{layout.stem} stem), and no state dict holds the number of heads: give --num-heads"
        )

    native = translate(state)
    classes = native["head.weight"].shape[0] if "head.weight" in native else 0
    overlay = {"num_classes": classes}
    network, _ = build_model(model, num_classes=classes, num_heads=heads, pretrained_cfg_overlay=overlay)
    if not isinstance(network, UnrolledTransformer):
        raise UserError(f"{model} is no unrolled transformer, {source} is")
    try:
        check_fit(native, network)  # nothing is resampled here: another patch or image size is another model
    except UserError as error:
        raise WeightsMismatch(f"{source}: {error}") from None
    network.load_state_dict(native)

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / "model"
        save_for_hf(network, str(folder), safe_serialization=True)
        folder.rename(out)
    return out
