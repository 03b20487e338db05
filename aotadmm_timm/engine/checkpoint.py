"""Checkpoints: written aside and renamed, the one before kept, loadable with `weights_only=True`."""

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from .config import UserError

logger = logging.getLogger(__name__)

LAST, PREVIOUS = "last.pt", "previous.pt"


def save(folder: Path, content: dict[str, Any]) -> Path:
    """Make `content` the last checkpoint in `folder`; the last one becomes the previous one.

    At every moment either last.pt or previous.pt is whole, whatever kills the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside, last = folder / "writing.pt", folder / LAST
    torch.save(content, aside)
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    if last.exists():
        os.replace(last, folder / PREVIOUS)
    os.replace(aside, last)
    return last


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; tensors and plain types only, so a file that would run code is refused.

    Raises: UserError naming the file.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, KeyError, ValueError) as err:
        raise UserError(f"{path}: damaged, or not a checkpoint: {str(err).splitlines()[0]}") from None
    if not isinstance(content, dict) or "step" not in content:
        raise UserError(f"{path}: not a training checkpoint")
    return content


def find(resume: str, run: Path) -> dict[str, Any] | None:
    """The checkpoint to continue from, or None to start at step 0.

    Args:
        resume: "auto" (the newest whole one in `run`), a checkpoint file, or a run folder.
    Raises: UserError if there are checkpoints, but none that can be read: a run never starts afresh over them.
    """
    path = Path(resume)
    if resume != "auto" and path.is_file():
        return load(path)
    if resume != "auto" and not path.is_dir():
        raise UserError(f"--resume {resume}: no such file or run folder")
    folder = (run if resume == "auto" else path) / "checkpoints"
    present = [folder / name for name in (LAST, PREVIOUS) if (folder / name).exists()]
    if not present:
        if resume != "auto":
            raise UserError(f"--resume {resume}: no checkpoint in it")
        return None
    for path in present:
        try:
            return load(path)
        except UserError as err:
            logger.warning("%s%s", err, "; trying the previous one" if path.name == LAST else "")
    raise UserError(f"{folder}: no checkpoint in it can be read")
