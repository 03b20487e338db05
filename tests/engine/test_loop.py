"""The loop on a small regression: schedule, log rows, accumulation, divergence, exact continuation."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from processes import run_processes
from torch import Tensor, nn

from aotadmm_timm import distributed
from aotadmm_timm.engine.loop import Loop, Stopped, fit
from aotadmm_timm.engine.optimizer import make_optimizer, make_schedule
from aotadmm_timm.engine.term_window import Diverged
from aotadmm_timm.errors import UserError
from aotadmm_timm.methods.base import Output
from aotadmm_timm.options import TrainConfig
from aotadmm_timm.runs import checkpoints
from aotadmm_timm.runs.folder import RunFolder, read_log

STEPS_PER_EPOCH = 5


class Batch(NamedTuple):
    indices: np.ndarray
    x: Tensor


def batches(start: int, stop: int) -> Iterator[Batch]:
    for step in range(start, stop):
        yield Batch(np.arange(4), torch.randn(4, 3, generator=torch.Generator().manual_seed(step)))


@dataclass(frozen=True)
class Config(TrainConfig):
    pass


def make(path: Path, hook: Callable[[int], None] | None = None, **options: Any) -> tuple[Loop, nn.Module]:
    """A network with dropout and BatchNorm, so that generator state and buffers matter."""
    torch.manual_seed(0)
    cfg = Config(**{"epochs": 4, "lr": 0.05, "log_every": 2, "warmup_epochs": 1, **options})
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = make_optimizer(cfg, model)

    def compute(batch: Batch, step: int) -> Output:
        if hook:
            hook(step)
        noise = float(np.random.rand())  # noqa: NPY002  (mixup draws from the global generator, too)
        loss = (model(batch.x)[:, 0] - batch.x.sum(1) - noise).square().mean()
        return Output(loss, {"noise": torch.tensor(noise), "vector": torch.zeros(3)})

    schedule = make_schedule(cfg, optimizer, STEPS_PER_EPOCH)
    run = RunFolder(path, resume=True)
    run.trackers.clear()
    loop = Loop(
        compute=compute,
        batches=batches,
        parameters=list(model.parameters()),
        optimizer=optimizer,
        before_step=lambda step: schedule.step_update(num_updates=step),
        run=run,
        steps=cfg.epochs * STEPS_PER_EPOCH,
        steps_per_epoch=STEPS_PER_EPOCH,
        state={"method": model, "optimizer": optimizer},
        config={},
        accumulate=cfg.accumulate,
        clip_grad=cfg.clip_grad,
        log_every=cfg.log_every,
        stop_after=cfg.stop_after,
        after_epoch=lambda epoch, output: {"probe": float(epoch)},
    )
    return loop, model


def log(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "images_per_s"} for row in read_log(path / "log.jsonl")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("whole")
    loop, model = make(path)
    fit(loop)
    return log(path), model.state_dict()


def equal(model: nn.Module, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_rows_of_the_log(whole: tuple[list[dict[str, Any]], dict[str, Tensor]]) -> None:
    rows, _ = whole
    assert [r["step"] for r in rows if "loss" in r] == [2, 4, 5, 6, 8, 10, 12, 14, 15, 16, 18, 20]
    assert [(r["step"], r["epoch"], r["probe"]) for r in rows if "probe" in r] == [
        (5, 1, 1.0), (10, 2, 2.0), (15, 3, 3.0), (20, 4, 4.0)
    ]  # fmt: skip
    assert set(rows[0]) == {"step", "epoch", "loss", "noise", "lr"}
    assert [r["epoch"] for r in rows if "loss" in r] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0.95), (3, 2.999), (1, 0.91)])
def test_a_warm_up_of_all_steps_is_named(epochs: int, warmup: float) -> None:
    cfg = Config(epochs=epochs, warmup_epochs=warmup)  # less than the epochs, and yet all of their steps
    with pytest.raises(UserError, match=rf"--warmup-epochs {warmup} is all {5 * epochs} steps: none is left"):
        make_schedule(cfg, make_optimizer(cfg, nn.Linear(3, 1)), STEPS_PER_EPOCH)
    shortened = Config(epochs=epochs, warmup_epochs=epochs - 0.2)
    make_schedule(shortened, make_optimizer(shortened, nn.Linear(3, 1)), STEPS_PER_EPOCH)


def test_learning_rate_is_a_pure_function_of_the_step() -> None:
    cfg = Config(epochs=4, lr=0.05, warmup_epochs=1)
    optimizer = make_optimizer(cfg, nn.Linear(3, 1))

    def rate(step: int) -> float:
        schedule = make_schedule(cfg, optimizer, STEPS_PER_EPOCH)
        schedule.step_update(num_updates=step)
        return float(optimizer.param_groups[0]["lr"])

    got = [rate(k) for k in range(20)]
    warm = [5e-5 + k / 5 * (0.05 - 5e-5) for k in range(5)]
    cosine = [5e-5 + 0.5 * (0.05 - 5e-5) * (1 + math.cos(math.pi * k / 15)) for k in range(15)]
    assert got == pytest.approx(warm + cosine, rel=1e-9)
    assert max(got) == got[5] == pytest.approx(0.05)
    assert [rate(k) for k in reversed(range(20))] == got[::-1]  # whatever came before


@pytest.mark.parametrize("first", [1, 3])
def test_one_epoch_and_a_resume_give_the_log_of_one_run(
    tmp_path: Path, whole: tuple[list[dict[str, Any]], dict[str, Tensor]], first: int
) -> None:
    fit(make(tmp_path, stop_after=first)[0])
    assert log(tmp_path)[-1]["epoch"] == first
    loop, model = make(tmp_path)
    fit(loop, checkpoints.find("auto", tmp_path))
    assert log(tmp_path) == whole[0]
    assert equal(model, whole[1])


@pytest.mark.parametrize("at", [0, 7, 14, 19])
def test_sigterm_finishes_the_step_and_saves(
    tmp_path: Path, whole: tuple[list[dict[str, Any]], dict[str, Tensor]], at: int
) -> None:
    loop, _ = make(tmp_path, hook=lambda step: signal.raise_signal(signal.SIGTERM) if step == at else None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped:
        fit(loop)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    snapshot = checkpoints.find("auto", tmp_path)
    assert snapshot is not None
    assert snapshot["step"] == at + 1
    loop, model = make(tmp_path)
    fit(loop, snapshot)
    assert log(tmp_path) == whole[0]
    assert equal(model, whole[1])


def test_an_exception_anywhere_loses_only_what_is_done_again(
    tmp_path: Path, whole: tuple[list[dict[str, Any]], dict[str, Tensor]]
) -> None:
    def fail(step: int) -> None:
        if step == 13:
            raise RuntimeError("a user's bug")

    with pytest.raises(RuntimeError, match="a user's bug"):
        fit(make(tmp_path, hook=fail)[0])
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 14, "epo')  # torn by a kill
    loop, model = make(tmp_path)
    snapshot = checkpoints.find("auto", tmp_path)
    assert snapshot is not None
    assert snapshot["step"] == 10
    fit(loop, snapshot)
    assert log(tmp_path) == whole[0]
    assert equal(model, whole[1])


def test_a_finished_run_does_nothing_more(
    tmp_path: Path, whole: tuple[list[dict[str, Any]], dict[str, Tensor]]
) -> None:
    fit(make(tmp_path)[0])
    loop, model = make(tmp_path)
    fit(loop, checkpoints.find("auto", tmp_path))
    assert log(tmp_path) == whole[0]
    assert equal(model, whole[1])


def test_seconds_add_up_over_a_stop(tmp_path: Path) -> None:
    first, _ = make(tmp_path, stop_after=1, hook=lambda step: time.sleep(0.02))
    fit(first)
    assert first.seconds > 0.1
    second, _ = make(tmp_path)
    fit(second, checkpoints.find("auto", tmp_path))
    assert second.seconds > first.seconds
    again, _ = make(tmp_path)  # finished: nothing is added
    fit(again, checkpoints.find("auto", tmp_path))
    assert again.seconds == second.seconds


def test_a_checkpoint_holds_tensors_and_plain_values(tmp_path: Path) -> None:
    fit(make(tmp_path, stop_after=1)[0])
    content = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert content["step"] == 5
    assert set(content["state"]) == {"method", "optimizer"}
    assert content["state"]["optimizer"]["state"][0]["exp_avg"].abs().sum() > 0
    assert content["rng"].dtype == torch.uint8


def test_a_term_that_is_not_finite_stops_and_is_named(tmp_path: Path) -> None:
    loop, model = make(tmp_path)
    compute = loop.compute

    def bad(batch: Any, step: int) -> Output:
        output = compute(batch, step)
        return output._replace(terms={**output.terms, "noise": torch.tensor(math.nan)}) if step == 7 else output

    loop.compute = bad
    with pytest.raises(Diverged, match="step 7: term 'noise' is nan"):
        fit(loop)
    saved = checkpoints.find("auto", tmp_path)
    assert saved is not None
    assert saved["step"] == 5
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_infinite_weights_never_become_a_checkpoint(tmp_path: Path) -> None:
    loop, model = make(tmp_path)

    def spoil(done: int) -> None:
        if done == 10:
            with torch.no_grad():
                model[4].bias.fill_(math.inf)

    loop.after_step = spoil
    with pytest.raises(Diverged, match="step 10: weights are not finite"):
        fit(loop)
    saved = checkpoints.find("auto", tmp_path)
    assert saved is not None
    assert saved["step"] == 5


def spoiled_on_the_last_rank(folder: Path) -> str:
    loop, model = make(folder / str(distributed.rank()))

    def spoil(done: int) -> None:
        if done == 10 and distributed.rank() == distributed.world_size() - 1:
            with torch.no_grad():
                model[4].bias.fill_(math.inf)

    loop.after_step = spoil
    try:
        fit(loop)
    except Diverged as err:
        return str(err)
    return "went on"


def test_infinite_weights_of_one_rank_end_all_of_them(tmp_path: Path) -> None:
    """None waits for the other; the first rank, whose weights are good, keeps the checkpoint before."""
    ends = run_processes(spoiled_on_the_last_rank, 2, tmp_path, folder=tmp_path)
    assert ends == ["step 10: weights are not finite; the last good checkpoint is kept"] * 2
    saved = checkpoints.find("auto", tmp_path / "0")
    assert saved is not None
    assert saved["step"] == 5


def test_accumulated_batches_give_the_gradient_of_their_mean(tmp_path: Path) -> None:
    grads = {}
    for accumulate in (1, 3):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        loop, _ = make(tmp_path / str(accumulate), accumulate=accumulate)
        loop.parameters, loop.state = list(model.parameters()), {}
        loop.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rows: list[Tensor] = [b.x for b in batches(0, 3)] if accumulate == 1 else []

        def compute(batch: Batch, step: int, model: nn.Module = model, rows: list[Tensor] = rows) -> Output:
            x = torch.cat(rows) if rows else batch.x
            return Output(model(x).square().mean())

        loop.compute, loop.steps, loop.steps_per_epoch = compute, 1, 1
        loop.after_step = lambda done, model=model, key=accumulate: grads.update({key: model.weight.grad.clone()})
        fit(loop)
    torch.testing.assert_close(grads[3], grads[1])
    losses = [read_log(tmp_path / str(n) / "log.jsonl")[0]["loss"] for n in (1, 3)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_clipping(tmp_path: Path) -> None:
    loop, model = make(tmp_path, clip_grad=1e-3)
    norms = []
    loop.after_step = lambda done: norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item())  # type: ignore[union-attr]
    fit(loop)
    assert max(norms) <= 1e-3 * 1.001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "--lr must be positive"),
        ({"min_lr": 0.1}, "--min-lr 0.1 must lie between 0 and --lr 0.05"),
        ({"warmup_epochs": 4}, "--warmup-epochs 4 must be less than --epochs 4"),
        ({"epochs": 0}, "--epochs must be positive, got 0"),
        ({"ema": 1.0}, "--ema 1.0 must lie between 0 and 1"),
        ({"opt": "adamx"}, "--opt adamx: "),
        ({"clip_grad": 0.0}, "--clip-grad"),
        ({"seed": -1}, r"--seed must be at least 0 and below 2\*\*31, got -1"),
        ({"seed": 2**31}, "--seed must be"),
        ({"save_every": -1}, "--save-every must not be negative, got -1"),
        ({"num_workers": -1}, "--num-workers must not be negative"),
        ({"weight_decay": -0.1}, "--weight-decay must not be negative"),
    ],
)
def test_refused_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **options)
