"""Terms of steps wait on the device until a row of the log is due, and are then the means of steps and ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_processes
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from aotadmm_timm import distributed
from aotadmm_timm.engine.term_window import Diverged, TermWindow


def test_means_over_passes_and_steps_go_on_from_a_checkpoint() -> None:
    window = TermWindow([{"loss": 1.0}])
    window.add(
        3, [{"loss": torch.tensor(2.0), "map": torch.zeros(3)}, {"loss": torch.tensor(4.0), "map": torch.zeros(3)}]
    )
    assert window.rows == [{"loss": 1.0}]
    window.gather()
    assert window.rows == [{"loss": 1.0}, {"loss": 3.0}]
    assert window.take() == {"loss": 2.0}
    assert window.rows == []
    window.gather()
    assert window.take() == {}


def test_adding_a_step_waits_for_no_value() -> None:
    """A fake tensor has none: reading it would raise, as a wait on a device would stall."""
    window = TermWindow()
    with FakeTensorMode():
        for step in range(3):
            window.add(step, [{"loss": torch.ones(()), "inv": torch.ones(())}])
        with pytest.raises(DataDependentOutputException):
            window.gather()


def test_the_first_step_and_the_term_before_the_loss_are_named() -> None:
    window = TermWindow(kept="here")
    window.add(4, [{"loss": torch.tensor(1.0), "inv": torch.tensor(1.0)}])
    window.add(5, [{"loss": torch.tensor(float("nan")), "inv": torch.tensor(float("inf"))}])
    window.add(6, [{"loss": torch.tensor(float("nan")), "inv": torch.tensor(float("nan"))}])
    with pytest.raises(Diverged, match=r"step 5: term 'inv' is inf; .* is in here"):
        window.blame()
    with pytest.raises(Diverged, match="step 5: term 'inv' is inf"):
        window.gather()


def on_rank() -> Any:
    window, collectives = TermWindow(), 0
    original = torch.distributed.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal collectives
        collectives += 1
        return original(*args, **kwargs)

    torch.distributed.all_reduce = counted
    for step in range(10):
        window.add(step, [{"loss": torch.tensor(float(step + distributed.rank()))}])
    before = collectives
    window.gather()
    return before, collectives, window.take()


def test_ten_steps_of_two_ranks_take_one_collective(tmp_path: Path) -> None:
    assert run_processes(on_rank, 2, folder=tmp_path) == [(0, 1, {"loss": 5.0})] * 2
