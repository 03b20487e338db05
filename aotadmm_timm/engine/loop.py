"""The training loop: step, log, checkpoint, stop, continue.

Step k is a function of (configuration, state after step k - 1): its batch, learning rate and random numbers depend on
the seed and k alone, so a run that was stopped anywhere and resumed ends with the weights of one that was not.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from aotadmm_timm import distributed

from . import checkpoint
from .run_folder import RunFolder

VERSION = 1


class Diverged(ArithmeticError):
    """A loss term is no longer finite."""


class Stopped(SystemExit):
    """Training ended early because a signal asked for it; the state is saved."""


@dataclass
class Loop:
    """What a training consists of.

    Attributes:
        compute: (batch, step) -> terms; "loss" is the scalar to minimise, scalar tensors are logged, others ignored.
        batches: (start, stop) -> the batches of those steps (objects with `.indices`, the samples of this rank).
        parameters: what gradient clipping sees.
        steps, steps_per_epoch: length of the whole run and of an epoch.
        state: what a checkpoint holds, by name: objects with `state_dict` and `load_state_dict`.
        accumulate: batches per optimizer step; statistics such as SIGReg's then see one batch at a time.
        amp_dtype: autocast to it, or None.
        save_every: epochs between checkpoints; 0 keeps none but the one at a stop and at the end.
        log_every: steps averaged into one row of the log.
        stop_after: end after this many epochs, with the schedule of the whole run.
        after_step: called with the number of completed steps, before the checkpoint (EMA updates).
        after_epoch: called with (epochs done, steps done); what it returns is logged as a row (probes).
    """

    compute: Callable[[Any, int], dict[str, Tensor]]
    batches: Callable[[int, int], Iterable[Any]]
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    scheduler: Any
    run: RunFolder
    steps: int
    steps_per_epoch: int
    state: dict[str, Any]
    config: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    accumulate: int = 1
    amp_dtype: torch.dtype | None = None
    clip_grad: float | None = None
    save_every: int = 1
    log_every: int = 10
    stop_after: int | None = None
    after_step: Callable[[int], None] | None = None
    after_epoch: Callable[[int, int], dict[str, float] | None] | None = None

    def _snapshot(self, step: int, window: list[dict[str, float]]) -> dict[str, Any]:
        return {
            "version": VERSION,
            "step": step,
            "config": self.config,
            "window": window,
            "rng": torch.get_rng_state(),
            "state": {name: part.state_dict() for name, part in self.state.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
        """Put a checkpoint back; returns the step to continue at and the terms not logged yet."""
        for name, part in self.state.items():
            if name not in snapshot["state"]:
                raise ValueError(f"checkpoint has no state of {name!r}; it has {', '.join(snapshot['state'])}")
            part.load_state_dict(snapshot["state"][name])
        torch.set_rng_state(snapshot["rng"])
        return int(snapshot["step"]), list(snapshot["window"])


def fit(loop: Loop, snapshot: dict[str, Any] | None = None) -> float:
    """Train to the end, from a checkpoint if there is one. Returns the images per second of this process's steps.

    Raises:
        Diverged: a term is not finite; names step and term, the last checkpoint stays.
        Stopped: SIGTERM or SIGINT came; the step was finished and the state saved.
    """
    main = distributed.is_main()
    start, window = loop.restore(snapshot) if snapshot else (0, [])
    if main:
        loop.run.rewind_log(start)
    stop = loop.steps if loop.stop_after is None else min(loop.steps, loop.stop_after * loop.steps_per_epoch)
    asked = _Signals()
    images, began, tick, tick_images = 0, time.perf_counter(), time.perf_counter(), 0
    bar = tqdm(
        total=stop, initial=start, disable=not main, unit="step", dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 15,
    )  # fmt: skip
    saved = start if snapshot else -1

    def save(step: int) -> None:
        nonlocal saved
        if main and saved != step:
            if not all(bool(torch.isfinite(p).all()) for p in loop.parameters):
                raise Diverged(f"step {step}: weights are not finite; the last good checkpoint is kept")
            checkpoint.save(loop.run.checkpoints, loop._snapshot(step, window))
        saved = step

    with asked, bar:
        for step, group in _grouped(
            loop.batches(start * loop.accumulate, stop * loop.accumulate), start, loop.accumulate
        ):
            torch.manual_seed(_step_seed(loop.seed, step, distributed.rank()))
            loop.scheduler.step_update(num_updates=step)
            terms, seen = _step(loop, group, step)
            images += seen
            tick_images += seen
            done = step + 1
            if loop.after_step:
                loop.after_step(done)
            window.append(terms)
            ends_epoch = done % loop.steps_per_epoch == 0 or done == stop
            if done % loop.log_every == 0 or ends_epoch:
                row = _mean(window)
                window.clear()
                row["lr"] = max(group["lr"] for group in loop.optimizer.param_groups)
                now = time.perf_counter()
                rate = tick_images * distributed.world_size() / max(now - tick, 1e-9)
                tick, tick_images = now, 0
                if main:
                    epoch = -(-done // loop.steps_per_epoch)
                    loop.run.log({"step": done, "epoch": epoch, **row, "images_per_s": round(rate, 1)})
                    shown = {k: f"{v:.4g}" for k, v in row.items()}
                    bar.set_description(f"epoch {epoch}/{loop.steps // loop.steps_per_epoch}")
                    bar.set_postfix({**shown, "images/s": f"{rate:.0f}"}, refresh=False)
            bar.update()
            if ends_epoch:
                epochs = -(-done // loop.steps_per_epoch)
                if loop.after_epoch and (extra := loop.after_epoch(epochs, done)) and main:
                    loop.run.log({"step": done, "epoch": epochs, **extra})
                tick, tick_images = time.perf_counter(), 0
                if done == stop or (loop.save_every and epochs % loop.save_every == 0):
                    save(done)
            if distributed.any_rank(asked.number is not None, loop.device):
                save(done)
                if main:
                    print(f"stopped at step {done}; continue with --resume auto", file=sys.stderr)
                raise Stopped(128 + (asked.number or signal.SIGTERM))
    distributed.barrier()
    return images * distributed.world_size() / max(time.perf_counter() - began, 1e-9)


def _step(loop: Loop, group: list[Any], step: int) -> tuple[dict[str, float], int]:
    """One optimizer step over the batches of `group`: the mean of each term, and how many images this rank saw."""
    loop.optimizer.zero_grad(set_to_none=True)
    collected: list[dict[str, float]] = []
    for batch in group:
        with torch.autocast(loop.device.type, loop.amp_dtype) if loop.amp_dtype else nullcontext():
            terms = loop.compute(batch, step)
        (terms["loss"] / len(group)).backward()
        scalars = {k: v.detach().float() for k, v in terms.items() if v.ndim == 0}
        values = torch.stack(list(scalars.values())).tolist()  # one transfer for all terms
        collected.append(dict(zip(scalars, values, strict=True)))
    terms_mean = _mean(collected)
    bad = sorted((k for k, v in terms_mean.items() if not math.isfinite(v)), key=lambda k: k == "loss")
    if distributed.any_rank(bool(bad), loop.device):
        bar_name = bad[0] if bad else "loss (on another rank)"
        raise Diverged(
            f"step {step}: term {bar_name!r} is {terms_mean.get(bar_name, math.nan)}; nothing of this step was kept, "
            f"the last good checkpoint is in {loop.run.checkpoints}"
        )
    if loop.clip_grad is not None:
        nn.utils.clip_grad_norm_(loop.parameters, loop.clip_grad)
    loop.optimizer.step()
    return terms_mean, sum(len(batch.indices) for batch in group)


def _grouped(batches: Iterable[Any], start: int, size: int) -> Iterator[tuple[int, list[Any]]]:
    """(optimizer step, its `size` batches) from consecutive batches."""
    step, group = start, []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield step, group
            step, group = step + 1, []


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else {}


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of the global generator (dropout, stochastic depth) at a step: no generator state has to survive a stop."""
    return (seed * 1_000_003 + step) * 1_009 + rank


class _Signals:
    """Remembers SIGTERM or SIGINT while training, so that a step is never cut in two. A second SIGINT interrupts."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread: signals are somebody else's
            self._before = {}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
