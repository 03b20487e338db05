"""Finished pieces of an extraction in `OUT.parts/`: what a killed run has done is not done again."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file


@dataclass(frozen=True)
class Part:
    """Rows of one piece: indices (n,) into the image source, features (n, *shape), and index -> reason of failures."""

    indices: np.ndarray
    features: np.ndarray
    failed: dict[int, str]


class Parts:
    """The pieces of one extraction.

    Args:
        folder: where they are kept.
        fingerprint: everything the rows depend on; pieces of another fingerprint are thrown away by `start`.
        count: number of pieces.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any], count: int) -> None:
        self.folder, self.count = folder, count
        self._manifest = folder / "manifest.json"
        self._fingerprint = json.dumps(fingerprint, sort_keys=True)

    def start(self) -> int:
        """Make the folder, or keep the one of an interrupted run of the same kind; the number of pieces it holds."""
        if self._manifest.is_file() and self._manifest.read_text(encoding="utf-8") == self._fingerprint:
            return sum(self.is_done(number) for number in range(self.count))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._manifest.write_text(self._fingerprint, encoding="utf-8")
        return 0

    def is_done(self, number: int) -> bool:
        """Whether a piece is there and whole (its header agrees with its size)."""
        try:
            with safe_open(self._path(number), framework="np"):
                return True
        except (SafetensorError, OSError):
            return False

    def write(self, number: int, part: Part) -> None:
        """Write aside and rename."""
        path = self._path(number)
        aside = path.with_suffix(f".{os.getpid()}")
        # Copied if need be: safetensors writes strided arrays as garbage.
        tensors = {"indices": np.ascontiguousarray(part.indices), "features": np.ascontiguousarray(part.features)}
        save_file(tensors, aside, metadata={"failed": json.dumps(part.failed)})
        os.replace(aside, path)

    def read(self, number: int) -> Part:
        with safe_open(self._path(number), framework="np") as file:
            return Part(file.get_tensor("indices"), file.get_tensor("features"), self._failed(file))

    def __iter__(self) -> Iterator[Part]:
        return (self.read(number) for number in range(self.count))

    def failures(self) -> dict[int, str]:
        """All failures, by index; reads the headers only."""
        failed: dict[int, str] = {}
        for number in range(self.count):
            with safe_open(self._path(number), framework="np") as file:
                failed |= self._failed(file)
        return failed

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    @staticmethod
    def _failed(file: Any) -> dict[int, str]:
        return {int(index): reason for index, reason in json.loads(file.metadata()["failed"]).items()}
