"""What is to be measured on a GPU, in one go of ten minutes, on a machine without network.

    python tests/benchmarks/gpu_data.py hfds/PATH/TO/cifar10 cifar10.tar.xz          where the data is
    python tests/benchmarks/gpu.py --data cifar10.tar.xz --output results            where the GPU is
    python tests/benchmarks/gpu.py --toy --output results                            all of it on a CPU, toy size

Parts, each in a process of its own with a limit of time, each with a line PASS, FAIL or TIME (stopped at its limit):

    machine      versions, hardware, rate of a bf16 matrix product
    tests        tests/test_device.py on the device
    step MODEL   tests/benchmarks/training_step.py: plain, ours, compiled
    data         the images, unpacked
    trial ...    100 steps of the CIFAR-10 Tiny recipe: eager, compiled, and on a GPU compiled with CUDA graphs
    pretraining  as many epochs of the recipe, whole schedule, as fit in the time that is left, the fastest way

A part's results are appended to results.jsonl in the output folder as soon as it ends; output.txt holds what the parts
print. The pretraining leaves its log, curves and encoder there. Ends with status 1 unless all parts pass. The project
need not be installed, its dependencies must be; `datasets` is not among those.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_data import ROOT, unpack

RECIPE = "train/recipes/cifar10_tiny.yaml"
EPOCHS = 800  # of the recipe
MARGIN = 25.0  # seconds kept at the end, for a pretraining that has to be stopped and saved
GRACE = 15.0  # of them between asking a process to end and ending it

MACHINE = """
import json, sys, time, torch
from aotadmm_timm.runs.environment import describe
device = torch.device(sys.argv[1])
a = torch.randn(int(sys.argv[2]), int(sys.argv[2]), device=device).bfloat16()
best = float("inf")
for _ in range(5):
    began = time.perf_counter()
    for _ in range(3):
        a @ a
    if device.type == "cuda":
        torch.cuda.synchronize()
    best = min(best, (time.perf_counter() - began) / 3)
print(json.dumps({**describe(device), "matmul_tflop_per_s": round(2 * len(a) ** 3 / best / 1e12, 2)}))
"""


@dataclass(frozen=True)
class Size:
    """What differs between the real thing and the toy."""

    device: str
    product: int  # side of the matrices of `machine`
    step: list[str]
    models: list[str]
    recipe: list[str]  # flags in every training
    trial: list[str]
    trial_limit: float
    most_epochs: int


REAL = Size(
    device="cuda",
    product=8192,
    step=["--compile"],
    models=["aot_admm_tiny", "aot_admm_base"],
    recipe=[],
    trial=["--num-samples", "12800"],
    trial_limit=150,
    most_epochs=EPOCHS,
)
# Of one layer: compiling it is most of the toy's time.
SMALL = ["--model", "test_aot_admm", "--model-kwargs", "depth=1", "--projector", "32", "16", "--num-slices", "16"]
TOY = Size(
    device="cpu",
    product=512,
    step=["--batch-size", "4", "--rounds", "1", "--threads", "1"],
    models=["aot_admm_nano"],
    recipe=[*SMALL, "--batch-size", "32"],
    trial=["--num-samples", "128"],
    trial_limit=300,
    most_epochs=3,
)


@dataclass
class Outcome:
    part: str
    status: str
    seconds: float
    output: str
    measured: dict[str, Any] = field(default_factory=dict)


class Budget:
    """Runs parts against one deadline and keeps what they give."""

    def __init__(self, output: Path, minutes: float) -> None:
        self.output, self.end = output, time.monotonic() + 60 * minutes
        self.failed: list[str] = []
        output.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return self.end - time.monotonic()

    def run(self, part: str, command: list[str], limit: float, **variables: str) -> Outcome:
        """Run one command from the project's folder; at its limit it is asked to end, then ended."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", **variables}
        log = self.output / "output.txt"
        began = time.monotonic()
        with open(log, "ab") as file:
            file.write(f"\n===== {part}: {' '.join(command)[:500]}\n".encode())
            file.flush()
            start = file.tell()
            process = subprocess.Popen(
                [sys.executable, *command], stdout=file, stderr=subprocess.STDOUT,
                cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                status = "FAIL" if process.wait(max(1.0, limit)) else "PASS"
            except subprocess.TimeoutExpired:
                status = "TIME"
            finally:  # also when this script is asked to end
                _end(process)
        output = log.read_bytes()[start:].decode(errors="replace")
        return Outcome(part, status, time.monotonic() - began, output)

    def keep(self, outcome: Outcome) -> Outcome:
        """Append a part's results to results.jsonl and print its line."""
        row = {"part": outcome.part, "status": outcome.status, "seconds": round(outcome.seconds, 1)}
        with open(self.output / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({**row, **outcome.measured}) + "\n")
        shown = "  ".join(f"{k} {v}" for k, v in outcome.measured.items() if not isinstance(v, list))
        print(f"{outcome.status}  {outcome.part:32}{outcome.seconds:7.1f} s  {shown}", flush=True)
        for line in outcome.measured.get("rows", []):
            print(f"      {line}", flush=True)
        if outcome.status != "PASS":
            self.failed.append(outcome.part)
            print("".join(f"      | {line}\n" for line in outcome.output.splitlines()[-12:]), end="", flush=True)
        return outcome


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process that is still running, with its children: asked first, so that a training can save its state."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


def machine(budget: Budget, size: Size) -> bool:
    outcome = budget.run("machine", ["-c", MACHINE, size.device, str(size.product)], 90)
    if outcome.status == "PASS":
        outcome.measured = json.loads(outcome.output.splitlines()[-1])
    return budget.keep(outcome).status == "PASS"


def tests(budget: Budget, size: Size) -> None:
    # Other versions of libraries warn of other things; that is for the usual run of the tests to see.
    flags = ["-q", "-W", "default", "-p", "no:cacheprovider", "-k", size.device.partition(":")[0]]
    outcome = budget.run("tests", ["-m", "pytest", "tests/test_device.py", *flags], min(180, 0.3 * budget.left()))
    lines = outcome.output.strip().splitlines()
    outcome.measured = {
        "summary": lines[-1].strip("= ") if lines else "",
        "failures": [line for line in lines if line.startswith(("FAILED", "ERROR"))],
    }
    budget.keep(outcome)


def steps(budget: Budget, size: Size) -> None:
    until = budget.left() * 0.65
    for model in size.models:
        command = ["tests/benchmarks/training_step.py", "--models", model, "--device", size.device, *size.step]
        outcome = budget.run(f"step {model}", command, budget.left() - until)
        lines = outcome.output.splitlines()
        outcome.measured = {"rows": [line for line in lines if line.startswith(model) or "images/s" in line]}
        budget.keep(outcome)


def data(budget: Budget, archive: Path | None, scratch: Path) -> Path | None:
    """The folder of shards. Without an archive the digits are packed into one."""
    began = time.monotonic()
    if archive is None:
        archive = scratch / "digits.tar.xz"
        command = ["tests/benchmarks/gpu_data.py", "digits", str(archive), "--num-samples", "320"]
        outcome = budget.run("data", command, 120)
        if outcome.status != "PASS":
            budget.keep(outcome)
            return None
    folder = scratch / "data"
    outcome = Outcome("data", "PASS", 0, "", {"mib": round(archive.stat().st_size / 2**20, 1)})
    try:
        unpack(archive, folder)
    except (OSError, EOFError, ValueError) as err:
        outcome.status, outcome.output = "FAIL", f"{archive}: {err}"
    outcome.seconds = time.monotonic() - began
    return folder if budget.keep(outcome).status == "PASS" else None


@dataclass
class Way:
    """How to run the recipe, and what a trial of it found."""

    name: str
    flags: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    images_per_s: float = 0.0
    seconds: float = 0.0


def ways(device: str) -> list[Way]:
    found = [Way("eager", []), Way("compiled", ["--compile"])]
    if device.startswith("cuda"):
        found.append(Way("compiled, CUDA graphs", ["--compile"], {"TORCHINDUCTOR_CUDAGRAPHS": "1"}))
    return found


def read_rows(log: Path) -> list[dict[str, Any]]:
    rows = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a last line cut short
            break
    return rows


def steady_rate(rows: list[dict[str, Any]]) -> float:
    """Images per second over the rows after the first epoch, which compiles (over all, if there are no more)."""
    timed = [row for row in rows if row.get("images_per_s")]
    later = [row for row in timed if row["epoch"] > 1] or timed
    # Rows hold equally many steps but for the last of an epoch: the mean over time is harmonic.
    return len(later) / sum(1 / row["images_per_s"] for row in later) if later else 0.0


def recipe(size: Size, folder: Path, out: Path, way: Way) -> list[str]:
    command = ["train/lejepa.py", "--config", RECIPE, "--dataset", f"wds/{folder}", "--output", str(out)]
    return [*command, "--device", size.device, "--amp", "bf16", "--no-evaluate", *size.recipe, *way.flags]


def trials(budget: Budget, size: Size, folder: Path, scratch: Path) -> Way | None:
    """The fastest way to run the recipe."""
    tried = ways(size.device)
    for number, way in enumerate(tried):
        out = scratch / f"trial-{number}"
        command = [*recipe(size, folder, out, way), "--stop-after", "2", "--save-every", "0", *size.trial]
        limit = min(size.trial_limit, budget.left() - MARGIN - 90)
        outcome = budget.run(f"trial {way.name}", command, limit, **way.variables)
        if outcome.status == "PASS":
            way.images_per_s, way.seconds = steady_rate(read_rows(out / "log.jsonl")), outcome.seconds
            outcome.measured = {"images_per_s": round(way.images_per_s, 1)}
        budget.keep(outcome)
    best = max(tried, key=lambda way: way.images_per_s)
    return best if best.images_per_s else None


def pretraining(budget: Budget, size: Size, folder: Path, scratch: Path, way: Way) -> None:
    with tarfile.open(folder / "train.tar") as shard:
        images = sum(name.endswith(".cls") for name in shard.getnames())
    # The start took most of a trial; more images are decoded now, and a probe ends the run.
    start = way.seconds + images / 1500
    epoch = images / way.images_per_s
    epochs = int((budget.left() - MARGIN - start) * 0.95 / epoch)
    epochs = min(size.most_epochs, max(1, epochs))
    out = scratch / "pretraining"
    command = [*recipe(size, folder, out, way), "--epochs", str(epochs), "--probe-every", str(epochs)]
    command += ["--save-every", "10"]
    try:
        outcome = budget.run("pretraining", command, budget.left() - MARGIN, **way.variables)
    finally:
        for name, kept in (("log.jsonl", "pretraining.jsonl"), ("curves.png", "curves.png")):
            if (out / name).is_file():
                shutil.copy(out / name, budget.output / kept)
        if (out / "encoder").is_dir():
            shutil.copytree(out / "encoder", budget.output / "encoder", dirs_exist_ok=True)
    rows = read_rows(out / "log.jsonl")
    losses, rate = [row["loss"] for row in rows if "loss" in row], steady_rate(rows)
    outcome.measured = {"way": way.name, "images": images, "epochs_asked": epochs}
    if losses:
        outcome.measured |= {
            "epochs": max(row["epoch"] for row in rows),
            "images_per_s": round(rate, 1),
            "seconds_per_epoch": round(images / rate, 2),
            f"hours_for_{EPOCHS}_epochs": round(EPOCHS * images / rate / 3600, 3),
            "first_loss": round(losses[0], 4),
            "last_loss": round(losses[-1], 4),
        }
    for key in ("offline_knn20", "online_probe"):
        if found := [row[key] for row in rows if key in row]:
            outcome.measured[key] = round(found[-1], 4)
    budget.keep(outcome)


def _asked_to_end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--data", type=Path, help="file made by gpu_data.py; digits in --toy")
    parser.add_argument("--minutes", type=float, default=10, help="for everything")
    parser.add_argument("--device", help="cuda; cpu in --toy")
    parser.add_argument("--toy", action="store_true", help="everything at toy size, to test this script")
    args = parser.parse_args()
    if args.data is None and not args.toy:
        parser.error("--data: which file made by gpu_data.py?")
    if args.data is not None and not args.data.is_file():
        parser.error(f"--data {args.data}: no such file")
    if (args.output / "results.jsonl").exists():
        parser.error(f"--output {args.output}: holds results already")
    size = TOY if args.toy else REAL
    size = replace(size, device=args.device or size.device)
    signal.signal(signal.SIGTERM, _asked_to_end)
    budget = Budget(args.output.resolve(), args.minutes)

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if machine(budget, size):
            tests(budget, size)
            steps(budget, size)
            folder = data(budget, args.data and args.data.resolve(), scratch)
            way = trials(budget, size, folder, scratch) if folder else None
            if folder and way:
                pretraining(budget, size, folder, scratch, way)
            else:
                budget.keep(Outcome("pretraining", "FAIL", 0, "no data, or no way of training that works"))
    print(f"\n{args.output / 'results.jsonl'}: {'all parts pass' if not budget.failed else ', '.join(budget.failed)}")
    raise SystemExit(1 if budget.failed else 0)


if __name__ == "__main__":
    main()
