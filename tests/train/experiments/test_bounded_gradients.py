"""train/experiments/bounded_gradients.py: gradients and curvatures by hand, and the whole at toy size."""

from pathlib import Path

import pytest
import torch
from scripts import call_script, load_script

from aotadmm_timm.runs.records import read_record

SCRIPT = "train/experiments/bounded_gradients.py"


def test_the_profile_of_a_known_statistic() -> None:
    others = torch.tensor([1.0, 2.0], dtype=torch.float64)
    places = torch.linspace(-1, 1, 5, dtype=torch.float64)
    gradient, curvature = load_script(SCRIPT).profile(lambda x: x.mean(-1) ** 2, others, places)
    torch.testing.assert_close(gradient, 2 / 9 * (places + 3))
    torch.testing.assert_close(curvature, torch.full((4,), 2 / 9, dtype=torch.float64))


def test_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call_script(monkeypatch, SCRIPT, "--samples", "30", "--points", "121", "--output", str(tmp_path))
    record = read_record(tmp_path / "experiment_bounded_gradients.jsonl")
    assert (tmp_path / "experiment_bounded_gradients.png").stat().st_size > 10_000
    rows = {row["statistic"]: row for row in record.epochs}
    assert rows["Epps-Pulley"]["largest_gradient"] < record.metrics["bound of the gradient of Epps-Pulley"]
    assert rows["its quadrature"]["largest_gradient"] == pytest.approx(
        rows["Epps-Pulley"]["largest_gradient"], rel=0.02
    )
    assert rows["moments to 4"]["power"] == pytest.approx(7, abs=0.3)  # (x^4)^2
    assert abs(rows["Cramer-von Mises"]["at_10"]) < 1e-12  # it does not feel an outlier
