"""train/compare.py: groups, mean and spread by hand, files, records without places, tables made anew."""

import csv
import json
import re
import runpy
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

TRAIN = Path(__file__).parents[2] / "train"
DATA = "hfds//data/of/mine/cifar10"


def call(*arguments: object) -> dict[str, Any]:
    before = sys.argv
    sys.argv = ["compare.py", *map(str, arguments)]
    try:
        return runpy.run_path(str(TRAIN / "compare.py"), run_name="__main__")
    finally:
        sys.argv = before


def make_run(folder: Path, linear: float, **config: Any) -> Path:
    folder.mkdir()
    values = {
        "model": "aot_nano",
        "dataset": "hfds//data/of/mine/cifar10",
        "epochs": 2,
        "seed": 0,
        "output": str(folder),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({**values, **config}))
    metrics = {
        "pretrained": {"knn20": linear - 0.1, "linear": linear, "rankme": 20.0},
        "images_per_second": 500.0,
        "seconds": 90.0,
        "environment": {"commit": "0123456789ab"},
        "command": f"python train/lejepa.py --dataset {DATA} --seed {config.get('seed', 0)} --output {folder}",
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    rows: list[dict[str, float]] = [{"step": s, "epoch": 1 + s // 3, "loss": 1 / s, "lr": 0.1} for s in range(1, 6)]
    (folder / "log.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in [*rows, {"step": 5, "epoch": 2, "offline_knn20": 0.5}])
    )
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / "a0", 0.80, lr=0.1, seed=0),
        make_run(tmp_path / "a1", 0.84, lr=0.1, seed=1),
        make_run(tmp_path / "b0", 0.90, lr=0.2, seed=0),
    ]


def test_mean_and_spread_by_what_differs(tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    call(*runs, "--output", tmp_path / "out")
    header, first, second = csv.reader((tmp_path / "out" / "compare.csv").read_text().splitlines())
    rows = [dict(zip(header, row, strict=True)) for row in (first, second)]
    assert [(r["lr"], r["n"]) for r in rows] == [("0.1", "2"), ("0.2", "1")]
    assert rows[0]["linear %"] == f"82.00 ± {100 * statistics.stdev([0.80, 0.84]):.2f}"
    assert rows[1]["linear %"] == "90.00"
    assert rows[0]["minutes"] == "1.5 ± 0.0"
    assert rows[1]["commit"] == "0123456"
    assert "seed" not in header
    assert "82.00 ± 2.83" in capsys.readouterr().out
    latex = (tmp_path / "out" / "compare.tex").read_text()
    assert r"82.00 $\pm$ 2.83" in latex
    assert r"linear \%" in latex
    assert r"aot\_nano" in latex
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_stopped_early_says_how_far_it_came(tmp_path: Path) -> None:
    call(make_run(tmp_path / "a", 0.8, epochs=30, stop_after=25), "--output", tmp_path / "out")
    with (tmp_path / "out" / "compare.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["epochs"] == "25 of 30"


def test_runs_of_different_length_are_no_repetitions(tmp_path: Path) -> None:
    make_run(tmp_path / "s0", 0.9, epochs=10, seed=0)
    make_run(tmp_path / "s1", 0.5, epochs=10, seed=1, stop_after=2)
    make_run(tmp_path / "s2", 0.8, epochs=10, seed=2, stop_after=10, dataset_download=True)
    call(*(tmp_path / f"s{i}" for i in range(3)), "--output", tmp_path / "out")
    with (tmp_path / "out" / "compare.csv").open() as file:
        assert [(r["epochs"], r["n"]) for r in csv.DictReader(file)] == [("10", "2"), ("2 of 10", "1")]


def test_a_finetuning_without_a_model_option_has_its_checkpoints(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.8, model=None, architecture="aot_tiny", checkpoint="start")
    call(run, "--output", tmp_path / "out")
    with (tmp_path / "out" / "compare.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["aot_tiny"]


def test_records_give_the_same_table_and_name_no_place(
    tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    call(*runs, "--keep", tmp_path / "results")
    files = sorted((tmp_path / "results").iterdir())
    assert [f.name for f in files] == ["a0.jsonl", "a1.jsonl", "b0.jsonl"]
    text = files[0].read_text()
    assert "/data/of" not in text
    assert str(tmp_path) not in text
    head, *epochs = map(json.loads, text.splitlines())
    assert head["command"] == "python train/lejepa.py --dataset hfds/cifar10 --seed 0"
    assert epochs[0] == {"epoch": 1, "loss": 0.75, "lr": 0.1}
    assert epochs[1] == {
        "epoch": 2,
        "loss": pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3, rel=1e-4),
        "lr": 0.1,
        "offline_knn20": 0.5,
    }
    capsys.readouterr()
    call(*files, "--output", tmp_path / "x")
    call(*runs, "--output", tmp_path / "y")
    tables = [re.sub(r"hfds/\S*cifar10", "cifar10", (tmp_path / n / "compare.csv").read_text()) for n in "xy"]
    assert tables[0] == tables[1]


def test_tables_of_a_results_file_are_made_anew(tmp_path: Path, runs: list[Path]) -> None:
    call(*runs, "--keep", tmp_path / "results")
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\n<!-- table: a? -->\nold\n<!-- end -->\n\nwords\n\n<!-- table: b0 -->\n<!-- end -->\n")
    call("--results", path)
    text = path.read_text()
    assert "old" not in text
    assert "words" in text
    assert "| 2 | 72.00 ± 2.83 | 82.00 ± 2.83 |" in text
    assert text.count("    python train/lejepa.py --dataset hfds/cifar10\n") == 2
    call("--results", path)
    assert path.read_text() == text
    path.write_text("<!-- table: b0,a? -->\n<!-- end -->\n")
    call("--results", path)
    assert [row.count("|") > 0 for row in path.read_text().splitlines()][1:5] == [True] * 4  # two groups, one table
    path.write_text("<!-- table: z -->\n<!-- end -->\n")
    with pytest.raises(SystemExit) as stop:
        call("--results", path)
    assert stop.value.code == 2


def test_published_tables_are_those_of_their_records() -> None:
    text = (TRAIN / "RESULTS.md").read_text(encoding="utf-8")
    assert "<!-- table: " in text
    script = runpy.run_path(str(TRAIN / "compare.py"))
    assert script["regenerate"](text, TRAIN / "results") == text


def test_no_place_of_this_machine_is_kept(tmp_path: Path, runs: list[Path]) -> None:
    metrics = json.loads((runs[0] / "metrics.json").read_text())
    command = (
        "python train/lejepa.py --output=/x/y --data-dir=/x/z --config=/x/r.yaml --lr 1 --data-dir '/x y' --seed 0"
    )
    (runs[0] / "metrics.json").write_text(json.dumps({**metrics, "command": command}))
    call(runs[0], "--keep", tmp_path / "results")
    head = json.loads((tmp_path / "results" / "a0.jsonl").read_text().splitlines()[0])
    assert head["command"] == "python train/lejepa.py --config=r.yaml --lr 1 --seed 0"


def test_a_record_is_not_replaced_by_another_run_of_its_name(
    tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    call(*runs, "--keep", tmp_path / "results")
    call(*runs, "--keep", tmp_path / "results")  # the same again is no harm
    before = (tmp_path / "results" / "a0.jsonl").read_text()
    (tmp_path / "other").mkdir()
    make_run(tmp_path / "other" / "a0", 0.5, lr=0.1, seed=0)
    with pytest.raises(SystemExit):
        call(tmp_path / "other" / "a0", "--keep", tmp_path / "results")
    assert "a0.jsonl: holds another run of that name" in capsys.readouterr().err
    assert (tmp_path / "results" / "a0.jsonl").read_text() == before


def test_refusals(tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    (runs[0] / "metrics.json").unlink()
    (tmp_path / "x.jsonl").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        ([], "which runs"),
        ([runs[0]], "has not finished"),
        ([tmp_path / "none"], "no such run folder or record"),
        ([tmp_path / "x.jsonl"], "not a record"),
        ([tmp_path / "empty"], "no run in it"),
    ]:
        with pytest.raises(SystemExit) as stop:
            call(*arguments)
        assert stop.value.code == 2
        assert words in capsys.readouterr().err
