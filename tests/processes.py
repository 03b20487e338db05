"""Real processes without a new interpreter each: functions in N that form a gloo group, and scripts."""

import multiprocessing
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aotadmm_timm import distributed

# The server imports torch once; the processes are forked from it, not from the test session and its threads.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["processes", "timm", "aotadmm_timm.methods"])


PATIENCE = 600  # seconds: far more than anything takes, for a machine that does other things as well


def _entry(function: Callable[..., Any], rank: int, world: int, port: int, args: tuple[Any, ...], out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        distributed.init_distributed("cpu")
        result = {"value": function(*args)}
        dist.destroy_process_group()
    except Exception:
        result = {"error": traceback.format_exc()}
    torch.save(result, out)


def run_processes(
    function: Callable[..., Any], world: int, *args: Any, folder: Path, timeout: float = 600
) -> list[Any]:
    """What `function(*args)` returns in each of `world` processes, in rank order. It lives in an importable module."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outputs = [folder / f"rank{rank}.pt" for rank in range(world)]
    processes = [
        _CONTEXT.Process(target=_entry, args=(function, rank, world, port, args, outputs[rank]))
        for rank in range(world)
    ]  # fmt: skip
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    for process in processes:
        process.kill()
    results = [torch.load(path, weights_only=False) if path.exists() else {"error": "killed"} for path in outputs]
    errors = [f"rank {rank}: {result['error']}" for rank, result in enumerate(results) if "error" in result]
    assert not errors, "\n".join(errors)
    return [result["value"] for result in results]


def _script_entry(path: str, arguments: list[str], folder: str, output: str) -> None:
    os.chdir(folder)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        file = os.open(f"{output}{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    torch.set_num_threads(1)
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


class Script:
    """A script that runs in a process of its own, which can be killed.

    Args:
        path: absolute.
        folder: where it runs.
        output: where files with what it prints go; the beginning of their names.
    """

    def __init__(self, path: Path, *arguments: object, folder: Path, output: Path) -> None:
        self.output = output
        words = list(map(str, arguments))
        self.process = _CONTEXT.Process(target=_script_entry, args=(str(path), words, str(folder), str(output)))
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.exitcode is None

    def send(self, number: int) -> None:
        """A signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self) -> tuple[int | None, str, str]:
        """Exit status (negative: the signal that ended it), stdout, stderr."""
        self.process.join(PATIENCE)
        texts = [Path(f"{self.output}{number}") for number in (1, 2)]
        return self.process.exitcode, *(path.read_text() if path.exists() else "" for path in texts)
