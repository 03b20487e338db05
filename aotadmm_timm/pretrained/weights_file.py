"""Files of weights: read without running anything, and the same whoever wrote them."""

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from aotadmm_timm.errors import DamagedFile, ModelNotFound, UserError
from aotadmm_timm.models.checkpoint import unwrap_state_dict
from aotadmm_timm.pretrained.building import first_line


def read_weights(path: Path) -> dict[str, Tensor]:
    """The bare state dict of one model in a .safetensors, .pth or training checkpoint, in its names.

    Of a training checkpoint it is the moving average of the backbone if there is one, else the backbone within the
    method. A pickle that holds more than tensors and plain values is refused.

    Raises: ModelNotFound; DamagedFile for a file that cannot be read or holds no tensors; WeightsMismatch for names of
        which only some carry a prefix.
    """
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file")
    content = _content(path)
    try:
        return _of_training(content) or unwrap_state_dict(content)
    except UserError as err:
        raise type(err)(f"{path}: {err}") from None


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as err:
            raise DamagedFile(f"{path}: not a readable safetensors file: {err}") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # torch raises whatever the unpickler meets
        # Its message about a pickle tells the user to load it without the check.
        reason = type(err).__name__ if isinstance(err, pickle.UnpicklingError) else first_line(err)
        raise DamagedFile(f"{path}: refused: not a checkpoint of tensors and plain data ({reason})") from None


def _of_training(content: Any) -> dict[str, Tensor]:
    """The backbone within a training checkpoint; empty for any other content."""
    state = content.get("state") if isinstance(content, Mapping) else None
    for part, prefix in (("ema", "module."), ("method", "backbone.")):
        named = state.get(part) if isinstance(state, Mapping) else None
        if isinstance(named, Mapping):
            backbone = {str(k).removeprefix(prefix): v for k, v in named.items() if str(k).startswith(prefix)}
            if tensors := {k: v for k, v in backbone.items() if isinstance(v, Tensor)}:
                return tensors
    return {}


def stored_parameters(weights: Path) -> int:
    """The number of elements in a safetensors file, read from its header alone. Raises DamagedFile."""
    try:
        with safe_open(weights, framework="pt") as file:
            shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError) as err:
        raise DamagedFile(f"{weights}: not a readable safetensors file: {err}") from None
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
