"""What a record keeps of a log."""

import pytest

from aotadmm_timm.runs.records import per_epoch


def test_an_epochs_mean_is_over_its_steps_whatever_the_rows() -> None:
    # 39 steps an epoch, a row every 10 steps and at an epoch's end; every loss is 1, but 10 at step 40
    ends = [(10, 1), (20, 1), (30, 1), (39, 1), (40, 2), (50, 2), (60, 2), (70, 2), (78, 2)]
    rows = [{"step": step, "epoch": epoch, "loss": 10.0 if step == 40 else 1.0} for step, epoch in ends]
    rows += [{"step": 78, "epoch": 2, "offline_knn20": 0.5}]
    first, second = per_epoch(rows)
    assert first == {"epoch": 1, "loss": 1.0}
    assert second["loss"] == pytest.approx((10 + 38) / 39, rel=1e-4)
    assert second["offline_knn20"] == 0.5
