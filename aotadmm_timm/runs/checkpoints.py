"""Checkpoints: written aside and renamed, the one before kept, loadable with `weights_only=True`."""

import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm.errors import UserError

logger = logging.getLogger(__name__)

_KEYS = {"step", "config", "state", "window", "rng"}
LAST, PREVIOUS, DAMAGED = "last.pt", "previous.pt", "damaged.pt"


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

    Every byte is checked against the checksums that `torch.save` writes and `torch.load` does not look at.

    Raises: UserError naming the file.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if (spoiled := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(f"wrong checksum of {spoiled}")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # a spoiled pickle raises almost anything
        reason = next(iter(str(err).splitlines()), "") or type(err).__name__
        raise UserError(f"{path}: damaged, or not a checkpoint: {reason}") from None
    if not isinstance(content, dict) or not content.keys() >= _KEYS:
        raise UserError(f"{path}: not a training checkpoint")
    return content


def find(resume: str, run: Path, *, repair: bool = True) -> dict[str, Any] | None:
    """The checkpoint to continue from, or None to start at step 0.

    Args:
        resume: "auto" (the newest whole one in `run`), a checkpoint file, or a run folder.
        repair: put a damaged last.pt of `run` aside; `save` would otherwise make it the previous one.
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
        if resume != "auto" or (folder / DAMAGED).exists():
            raise UserError(f"--resume {resume}: no checkpoint in {folder} that can be read")
        return None
    failures = []
    for path in present:
        try:
            content = load(path)
        except UserError as err:
            failures.append(str(err))
            continue
        for failure in failures:
            logger.warning("%s; using %s instead", failure, path)
        if failures and repair and folder.parent == run:
            os.replace(folder / LAST, folder / DAMAGED)
        return content
    raise UserError(f"no checkpoint can be read: {'; '.join(failures)}")
