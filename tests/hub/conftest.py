"""A finished run folder, and a loopback Hub that child processes talk to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from finished_run import make_run
from huggingface_hub import constants
from loopback_hub import LoopbackHub

__all__ = ["hub", "make_run"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A running Hub; this process and those started by the test find it through their environment."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read from the environment when it was imported
    with LoopbackHub() as server:
        for name, value in server.environment(tmp_path / "hf-home").items():
            monkeypatch.setenv(name, value)
        yield server
