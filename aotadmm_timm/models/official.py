"""Names of published white-box checkpoints translated to this package's names."""

import re

import torch
from torch import Tensor

# CRATE (Ma-Lab-Berkeley) and CRATE-alpha (UCSC-VLAA): one naming, two stems and two sparse coding blocks.
_CRATE = [
    (r"^to_patch_embedding\.1\.", "patch_embed.norm_patch."),
    (r"^to_patch_embedding\.2\.", "patch_embed.proj."),
    (r"^to_patch_embedding\.3\.", "patch_embed.norm."),
    (r"^conv1\.", "patch_embed.proj."),
    (r"^pos_embedding$", "pos_embed"),
    (r"^transformer\.layers\.(\d+)\.0\.norm\.", r"blocks.\1.norm1."),
    (r"^transformer\.layers\.(\d+)\.0\.fn\.qkv\.", r"blocks.\1.attn.qkv."),
    (r"^transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.", r"blocks.\1.attn.proj."),
    (r"^transformer\.layers\.(\d+)\.1\.norm\.", r"blocks.\1.norm2."),
    (r"^transformer\.layers\.(\d+)\.1\.fn\.(weight|D)$", r"blocks.\1.ista.dictionary"),
    (r"^transformer\.layers\.(\d+)\.1\.fn\.D1$", r"blocks.\1.ista.decoder"),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
]

# The image tower of CRATE-alpha CLIPA, in CLIP's naming.
_CLIPA = [
    (r"^conv1\.", "patch_embed.proj."),
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^transformer\.resblocks\.(\d+)\.ln_1\.", r"blocks.\1.norm1."),
    (r"^transformer\.resblocks\.(\d+)\.attn\.in_proj_weight$", r"blocks.\1.attn.qkv.weight"),
    (r"^transformer\.resblocks\.(\d+)\.attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (r"^transformer\.resblocks\.(\d+)\.ln_2\.", r"blocks.\1.norm2."),
    (r"^transformer\.resblocks\.(\d+)\.mlp\.c_fc$", r"blocks.\1.ista.dictionary"),
    (r"^transformer\.resblocks\.(\d+)\.mlp\.c_proj$", r"blocks.\1.ista.decoder"),
    (r"^ln_post\.", "norm."),
    (r"^proj$", "head.weight"),
]


def translate(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published CRATE, CRATE-alpha, CRATE-alpha CLIPA and patch-8 demo files in native names; others unchanged.

    The demo file ends in two linear layers without a non-linearity between (`mlp_head.1`, `head`): they are multiplied
    into one. Of a CLIPA file the text tower is left out and the image projection becomes a classifier without bias.

    Raises: ValueError if a CLIPA file's queries, keys and values are not one and the same projection.
    """
    if "visual.class_embedding" in state_dict:
        return _translate_clipa(state_dict)
    if "pos_embedding" not in state_dict:
        return state_dict
    state_dict = dict(state_dict)
    if "head.weight" in state_dict and "mlp_head.1.weight" in state_dict:
        outer, inner = state_dict.pop("head.weight"), state_dict["mlp_head.1.weight"]
        state_dict["mlp_head.1.bias"] = outer @ state_dict["mlp_head.1.bias"] + state_dict.pop("head.bias")
        state_dict["mlp_head.1.weight"] = outer @ inner
    return _rename(state_dict, _CRATE)


def _translate_clipa(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    visual = {key.removeprefix("visual."): t for key, t in state_dict.items() if key.startswith("visual.")}
    native = _rename(visual, _CLIPA)
    for key, tensor in native.items():
        if key.endswith("attn.qkv.weight"):
            query, key_, value = tensor.chunk(3)
            if not (torch.equal(query, key_) and torch.equal(query, value)):
                raise ValueError(f"{key}: queries, keys and values differ, this is no subspace attention")
            native[key] = query
    native["cls_token"] = native["cls_token"].reshape(1, 1, -1)
    native["pos_embed"] = native["pos_embed"].unsqueeze(0)
    native["patch_embed.proj.bias"] = torch.zeros(native["patch_embed.proj.weight"].shape[0])
    if "head.weight" in native:
        native["head.weight"] = native["head.weight"].t()
        native["head.bias"] = torch.zeros(native["head.weight"].shape[0])
    return native


def _rename(state_dict: dict[str, Tensor], rules: list[tuple[str, str]]) -> dict[str, Tensor]:
    renamed = {}
    for key, tensor in state_dict.items():
        for pattern, replacement in rules:
            key, hits = re.subn(pattern, replacement, key)
            if hits:
                break
        renamed[key] = tensor
    return renamed
