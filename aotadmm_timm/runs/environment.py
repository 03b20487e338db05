"""What a result depends on besides its configuration: versions, hardware, commit."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the commit and the command are known without torch
    import torch


def commit() -> str | None:
    """Commit of the source tree, with "-dirty" if tracked files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True)
        if head.returncode:
            return None
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return None
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


def command_line() -> str:
    """How this process was called, for the record of a run. torchrun leaves its options in the environment."""
    launcher = ["python"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = ["torchrun", f"--nproc_per_node={os.environ['LOCAL_WORLD_SIZE']}"]
        if (nodes := os.environ.get("GROUP_WORLD_SIZE", "1")) != "1":
            launcher.append(f"--nnodes={nodes}")
    return shlex.join([*launcher, f"train/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def describe(device: "torch.device") -> dict[str, Any]:
    """Versions, commit and hardware as plain values."""
    import timm
    import torch

    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "device": device.type,
        "hardware": hardware,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
