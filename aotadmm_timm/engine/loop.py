"""The training loop: step, log, checkpoint, stop, continue.

Step k is a function of (configuration, state after step k - 1): its batch, learning rate and random numbers depend on
the seed and k alone, so a run that was stopped anywhere and resumed ends with the weights of one that was not.

Nothing in a step waits for the device or for another rank, except the averaging of gradients: terms stay where they
are until a row of the log is due, and ranks agree there whether a signal asked for an end. A term that is not finite
is therefore found at the next row; no checkpoint is written before it has been looked for.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.utils.random import random_seed
from torch import nn

from aotadmm_timm import distributed
from aotadmm_timm.errors import UserError
from aotadmm_timm.methods.base import Output
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.folder import RunFolder

from .meter import Meter
from .stop_signals import StopSignals
from .term_window import Diverged, TermWindow

VERSION = 1


class Stopped(SystemExit):
    """Training ended early because a signal asked for it; the state is saved."""


@dataclass
class Loop:
    """What a training consists of.

    Attributes:
        compute: (batch, step) -> `Output`: the scalar to minimize, and scalars to log.
        batches: (start, stop) -> the batches of those steps (objects with `.indices`, the samples of this rank);
            with `accumulate` n there are n batches to a step.
        parameters: what gradient clipping sees.
        before_step: called with the number of the step (schedules).
        steps, steps_per_epoch: length of the whole run and of an epoch.
        state: what a checkpoint holds, by name: objects with `state_dict` and `load_state_dict`.
        accumulate: batches per optimizer step; statistics such as SIGReg's then see one batch at a time.
        amp_dtype: autocast to it, or None.
        save_every: epochs between checkpoints; 0 keeps none but the one at a stop and at the end.
        log_every: steps averaged into one row of the log.
        stop_after: end after this many epochs, with the schedule of the whole run.
        no_sync: context in which gradients are not averaged over ranks yet (DistributedDataParallel's).
        after_backward: called with the number of the step, before gradients are clipped and used.
        after_step: called with the number of completed steps, before the checkpoint (EMA updates).
        after_epoch: called with the number of epochs begun and the last output; what it returns is logged as a row.
        seconds: spent in `fit` so far, over every stop up to the checkpoint that a run was resumed from.
    """

    compute: Callable[[Any, int], Output]
    batches: Callable[[int, int], Iterable[Any]]
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    before_step: Callable[[int], None]
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
    no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext
    after_backward: Callable[[int], None] | None = None
    after_step: Callable[[int], None] | None = None
    after_epoch: Callable[[int, Output], dict[str, float]] | None = None
    seconds: float = 0.0

    @property
    def stop(self) -> int:
        """The step before which this call of `fit` ends."""
        return self.steps if self.stop_after is None else min(self.steps, self.stop_after * self.steps_per_epoch)

    def snapshot(self, step: int, window: list[dict[str, float]]) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values. `window` are terms that were not logged yet."""
        return {
            "version": VERSION,
            "step": step,
            "config": self.config,
            "window": window,
            "seconds": self.seconds,
            "rng": torch.get_rng_state(),
            "state": {name: part.state_dict() for name, part in self.state.items()},
        }

    def restore(self, snapshot: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
        """Put a checkpoint back; returns the step to continue at and the terms not logged yet."""
        for name, part in self.state.items():
            if name not in snapshot["state"]:
                raise UserError(f"checkpoint has no state of {name!r}; it has {', '.join(snapshot['state'])}")
            part.load_state_dict(snapshot["state"][name])
        torch.set_rng_state(snapshot["rng"])
        self.seconds = float(snapshot.get("seconds", 0.0))
        return int(snapshot["step"]), list(snapshot["window"])


def fit(loop: Loop, snapshot: dict[str, Any] | None = None) -> None:
    """Train to the end, from a checkpoint if there is one.

    Raises:
        Diverged: a term is not finite; names step and term, the last checkpoint stays.
        Stopped: SIGTERM or SIGINT came; the step was finished and the state saved.
    """
    start, rows = loop.restore(snapshot) if snapshot else (0, [])
    if distributed.is_main():
        loop.run.rewind_log(start)
    window = TermWindow(rows, kept=loop.run.checkpoints)
    saver = _Saver(loop, window, saved=start if snapshot else -1)
    with StopSignals() as asked, Meter(loop.run, start, loop.stop, loop.steps // loop.steps_per_epoch) as meter:
        batches = loop.batches(start * loop.accumulate, loop.stop * loop.accumulate)
        for step, group in _grouped(batches, start, loop.accumulate):
            random_seed(_step_seed(loop.seed, step), distributed.rank())
            loop.before_step(step)
            output = _step(loop, group, step, window)
            done, epoch = step + 1, step // loop.steps_per_epoch + 1
            if loop.after_step:
                loop.after_step(done)
            ends_epoch = done % loop.steps_per_epoch == 0 or done == loop.stop
            meter.count(sum(len(batch.indices) for batch in group))
            if logs := done % loop.log_every == 0 or ends_epoch:
                window.gather()
                rate = max(g["lr"] for g in loop.optimizer.param_groups)
                meter.row(done, epoch, {**window.take(), "lr": rate})
            if ends_epoch:
                _end_of_epoch(loop, done, epoch, output)
                meter.restart()
                if done == loop.stop or (loop.save_every and epoch % loop.save_every == 0):
                    saver.save(done)
            if _asked(asked, loop.device, agreed=logs):
                saver.save(done)
                if distributed.is_main():
                    print(f"stopped at step {done}; continue with --resume auto", file=sys.stderr)
                raise Stopped(128 + (asked.number or signal.SIGTERM))
    distributed.barrier()


def _asked(asked: StopSignals, device: torch.device, *, agreed: bool) -> bool:
    """Whether to stop now. Ranks ask each other where they meet anyway, at a row of the log; one alone need not."""
    if distributed.world_size() == 1:
        return asked.number is not None
    return agreed and distributed.any_rank(asked.number is not None, device)


def _end_of_epoch(loop: Loop, done: int, epoch: int, output: Output) -> None:
    if loop.after_epoch and (extra := loop.after_epoch(epoch, output)) and distributed.is_main():
        loop.run.log({"step": done, "epoch": epoch, **extra})


class _Saver:
    """Writes checkpoints, each step once, and only of what is finite."""

    def __init__(self, loop: Loop, window: TermWindow, saved: int) -> None:
        self.loop, self.window, self.saved = loop, window, saved
        self.began = time.perf_counter() - loop.seconds

    def save(self, step: int) -> None:
        if self.saved == step:
            return
        self.window.gather()
        # Asked on every rank, so that all of them end here, not one of them while the others wait for it.
        spoiled = not all(bool(torch.isfinite(p).all()) for p in self.loop.parameters)
        if distributed.any_rank(spoiled, self.loop.device):
            raise Diverged(f"step {step}: weights are not finite; the last good checkpoint is kept")
        self.loop.seconds = time.perf_counter() - self.began
        if distributed.is_main():
            checkpoints.save(self.loop.run.checkpoints, self.loop.snapshot(step, self.window.rows))
        self.saved = step


def _step(loop: Loop, group: list[Any], step: int, window: TermWindow) -> Output:
    """One optimizer step over the batches of `group`; returns the last one's output."""
    loop.optimizer.zero_grad(set_to_none=True)
    passes = []
    try:
        for number, batch in enumerate(group, 1):
            with nullcontext() if number == len(group) else loop.no_sync():
                with torch.autocast(loop.device.type, loop.amp_dtype) if loop.amp_dtype else nullcontext():
                    output = loop.compute(batch, step)
                (output.loss / len(group)).backward()
            passes.append({"loss": output.loss, **output.terms})
    except Exception:
        window.blame()  # a step that is not finite makes the next ones fail in ways of their own
        raise
    window.add(step, passes)
    if loop.after_backward:
        loop.after_backward(step)
    if loop.clip_grad is not None:
        nn.utils.clip_grad_norm_(loop.parameters, loop.clip_grad)
    loop.optimizer.step()
    return output._replace(loss=output.loss.detach())


def _grouped(batches: Iterable[Any], start: int, size: int) -> Iterator[tuple[int, list[Any]]]:
    """(optimizer step, its `size` batches) from consecutive batches."""
    step, group = start, []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield step, group
            step, group = step + 1, []


def _step_seed(seed: int, step: int) -> int:
    """Seed of the global generators (dropout, stochastic depth, mixup) at a step; timm adds the rank.

    With it no generator state has to survive a stop.
    """
    return (seed * 1_000_003 + step) * 1_009 % 2**31  # numpy takes 32 bits
