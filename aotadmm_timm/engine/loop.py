"""The training loop: step, log, checkpoint, stop, continue.

Step k is a function of (configuration, state after step k - 1): its batch, learning rate and random numbers depend on
the seed and k alone, so a run that was stopped anywhere and resumed ends with the weights of one that was not.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from timm.utils.random import random_seed
from torch import Tensor, nn
from tqdm import tqdm

from aotadmm_timm import distributed
from aotadmm_timm.runs.folder import RunFolder

from . import checkpoint

VERSION = 1


class Diverged(ValueError):
    """A loss term is no longer finite."""


class Stopped(SystemExit):
    """Training ended early because a signal asked for it; the state is saved."""


@dataclass
class Loop:
    """What a training consists of.

    Attributes:
        compute: (batch, step) -> terms; "loss" is the scalar to minimise, scalar tensors are logged, others ignored.
        batches: (start, stop) -> the batches of those steps (objects with `.indices`, the samples of this rank);
            with `accumulate` n there are n batches to a step.
        parameters: what gradient clipping sees.
        steps, steps_per_epoch: length of the whole run and of an epoch.
        state: what a checkpoint holds, by name: objects with `state_dict` and `load_state_dict`.
        accumulate: batches per optimizer step; statistics such as SIGReg's then see one batch at a time.
        amp_dtype: autocast to it, or None.
        save_every: epochs between checkpoints; 0 keeps none but the one at a stop and at the end.
        log_every: steps averaged into one row of the log.
        stop_after: end after this many epochs, with the schedule of the whole run.
        no_sync: context in which gradients are not averaged over ranks yet (DistributedDataParallel's).
        after_step: called with the number of completed steps, before the checkpoint (EMA updates).
        after_epoch: called with the number of epochs begun; what it returns is logged as a row (probes).
        seconds: spent in `fit` so far, over every stop up to the checkpoint that a run was resumed from.
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
    no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext
    after_step: Callable[[int], None] | None = None
    after_epoch: Callable[[int], dict[str, float]] | None = None
    seconds: float = 0.0

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
                raise ValueError(f"checkpoint has no state of {name!r}; it has {', '.join(snapshot['state'])}")
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
    main = distributed.is_main()
    start, window = loop.restore(snapshot) if snapshot else (0, [])
    if main:
        loop.run.rewind_log(start)
    stop = loop.steps if loop.stop_after is None else min(loop.steps, loop.stop_after * loop.steps_per_epoch)
    saved = start if snapshot else -1
    meter = _Meter(loop, start, stop)
    began = time.perf_counter() - loop.seconds

    def save(step: int) -> None:
        nonlocal saved
        if saved == step:
            return
        # Asked on every rank, so that all of them end here, not one of them while the others wait for it.
        spoiled = not all(bool(torch.isfinite(p).all()) for p in loop.parameters)
        if distributed.any_rank(spoiled, loop.device):
            raise Diverged(f"step {step}: weights are not finite; the last good checkpoint is kept")
        loop.seconds = time.perf_counter() - began
        if main:
            checkpoint.save(loop.run.checkpoints, loop.snapshot(step, window))
        saved = step

    with _Signals() as asked, meter:
        batches = loop.batches(start * loop.accumulate, stop * loop.accumulate)
        for step, group in _grouped(batches, start, loop.accumulate):
            random_seed(_step_seed(loop.seed, step), distributed.rank())
            loop.scheduler.step_update(num_updates=step)
            window.append(_step(loop, group, step))
            done = step + 1
            epoch = step // loop.steps_per_epoch + 1
            if loop.after_step:
                loop.after_step(done)
            ends_epoch = done % loop.steps_per_epoch == 0 or done == stop
            meter.count(sum(len(batch.indices) for batch in group))
            if done % loop.log_every == 0 or ends_epoch:
                meter.row(done, epoch, _mean(window))
                window.clear()
            if ends_epoch:
                if loop.after_epoch and (extra := loop.after_epoch(epoch)) and main:
                    loop.run.log({"step": done, "epoch": epoch, **extra})
                meter.restart()
                if done == stop or (loop.save_every and epoch % loop.save_every == 0):
                    save(done)
            if distributed.any_rank(asked.number is not None, loop.device):
                save(done)
                if main:
                    print(f"stopped at step {done}; continue with --resume auto", file=sys.stderr)
                raise Stopped(128 + (asked.number or signal.SIGTERM))
    distributed.barrier()


def _step(loop: Loop, group: list[Any], step: int) -> dict[str, float]:
    """One optimizer step over the batches of `group`; returns the mean of each term over them and over the ranks."""
    loop.optimizer.zero_grad(set_to_none=True)
    total: Tensor | None = None
    names: list[str] = []
    for number, batch in enumerate(group, 1):
        with nullcontext() if number == len(group) else loop.no_sync():
            with torch.autocast(loop.device.type, loop.amp_dtype) if loop.amp_dtype else nullcontext():
                terms = loop.compute(batch, step)
            (terms["loss"] / len(group)).backward()
        scalars = {k: v.detach().float() for k, v in terms.items() if v.ndim == 0}
        names, values = list(scalars), torch.stack(list(scalars.values()))
        total = values if total is None else total + values
    assert total is not None
    means = dict(zip(names, (distributed.all_reduce_mean(total) / len(group)).tolist(), strict=True))
    bad = sorted((k for k, v in means.items() if not math.isfinite(v)), key=lambda k: k == "loss")
    if bad:  # on every rank, because the means are
        raise Diverged(
            f"step {step}: term {bad[0]!r} is {means[bad[0]]}; nothing of this step was kept, the last good "
            f"checkpoint, if any, is in {loop.run.checkpoints}"
        )
    if loop.clip_grad is not None:
        nn.utils.clip_grad_norm_(loop.parameters, loop.clip_grad)
    loop.optimizer.step()
    return means


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


def _step_seed(seed: int, step: int) -> int:
    """Seed of the global generators (dropout, stochastic depth, mixup) at a step; timm adds the rank.

    With it no generator state has to survive a stop.
    """
    return (seed * 1_000_003 + step) * 1_009 % 2**31  # numpy takes 32 bits


class _Meter:
    """The progress bar, and the rows of the log with their images per second over all ranks."""

    def __init__(self, loop: Loop, start: int, stop: int) -> None:
        self.loop, self.main = loop, distributed.is_main()
        self.bar = tqdm(
            total=stop, initial=start, disable=not self.main, unit="step", dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 15,
        )  # fmt: skip
        self.restart()

    def __enter__(self) -> "_Meter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.close()

    def restart(self) -> None:
        self.images, self.since = 0, time.perf_counter()

    def count(self, images: int) -> None:
        self.images += images * distributed.world_size()
        self.bar.update()

    def row(self, done: int, epoch: int, terms: dict[str, float]) -> None:
        rate = self.images / max(time.perf_counter() - self.since, 1e-9)
        self.restart()
        if not self.main:
            return
        terms = {**terms, "lr": max(group["lr"] for group in self.loop.optimizer.param_groups)}
        self.loop.run.log({"step": done, "epoch": epoch, **terms, "images_per_s": round(rate, 1)})
        shown = {k: f"{v:.4g}" for k, v in terms.items()}
        self.bar.set_description(f"epoch {epoch}/{self.loop.steps // self.loop.steps_per_epoch}", refresh=False)
        self.bar.set_postfix({**shown, "images/s": f"{rate:.0f}"}, refresh=False)


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
