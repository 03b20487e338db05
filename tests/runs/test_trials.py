"""Trials of a search: a file that keeps all of them, rows a reader understands, one figure."""

from pathlib import Path

import pytest
from PIL import Image

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.trials import Trial, draw_path, read_trials, trial_rows, write_trials

SCORES = {"knn20": 0.4, "linear": 0.5, "rankme": 60.0, "cosine": 0.75}
GOOD = Trial(
    "fast",
    {"lr": 0.04, "opt_kwargs": {"nesterov": True}, "projector": [512, 64]},
    seed=1,
    command="python train/lejepa.py --lr 0.04",
    commit="0123456789ab",
    cost=9.96,
    scores=SCORES,
)
BAD = Trial("too fast", {"lr": 4.0}, failed="step 7: term 'loss' is nan")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    assert read_trials(path) == []
    write_trials(path, [GOOD, BAD])
    assert read_trials(path) == [GOOD, BAD]
    assert len(path.read_text().splitlines()) == 2
    assert "scores" not in path.read_text().splitlines()[1]


@pytest.mark.parametrize("line", ["{", '{"name": "a"}', '{"name": "a", "options": {}, "colour": 1}', "3"])
def test_a_line_that_is_no_trial_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "search.jsonl"
    write_trials(path, [GOOD])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"search\.jsonl: line 2 is not a trial"):
        read_trials(path)


def test_rows() -> None:
    header, good, bad = trial_rows([GOOD, BAD])
    assert len(header) == len(good) == len(bad)
    row = dict(zip(header, good, strict=True))
    assert row["changes"] == "lr 0.04, opt_kwargs nesterov=True, projector 512 64"
    assert (row["cost"], row["kNN %"], row["linear %"], row["RankMe"]) == ("10.0", "40.00", "50.00", "60.0")
    assert (row["seed"], row["commit"]) == ("1", "0123456")
    assert "failed: step 7: term 'loss' is nan" in bad


def test_the_figure_shows_failures_too(tmp_path: Path) -> None:
    path = tmp_path / "path.png"
    for trials in ([GOOD, BAD], [BAD]):
        draw_path(trials, path)
        with Image.open(path) as image:
            assert min(image.size) > 300
    assert [p.name for p in tmp_path.iterdir()] == ["path.png"]
