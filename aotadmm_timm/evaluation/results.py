"""What an evaluation leaves: a JSON file, figures, tables on the screen, one HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aotadmm_timm.evaluation.geometry import geometry_rows
from aotadmm_timm.evaluation.report import render_report
from aotadmm_timm.evaluation.subject import Subject
from aotadmm_timm.evaluation.summary import align, format_table, score_rows, to_json
from aotadmm_timm.runs.curves import draw_curves
from aotadmm_timm.runs.folder import write_text

Figures = dict[str, tuple[Any, str]]  # title: matplotlib figure, or path of a PNG, and its caption


def write_results(subject: Subject, folder: Path, result: dict[str, Any], figures: Figures, *, report: bool) -> None:
    """Write and print what `evaluate` found; with `report` also the page, into the run or into `folder`."""
    stem = result["dataset"].strip("./").replace("/", "-")
    write_text(folder / f"{stem}.json", to_json(result))
    for title, (figure, _) in figures.items():
        path = folder / f"{stem}_{title.lower().replace(' ', '_')}.png"
        figure.savefig(path.with_suffix(".part.png"), dpi=110)
        os.replace(path.with_suffix(".part.png"), path)
    _print_tables(subject, result)
    print(f"\nresults: {folder / stem}.json")
    if report:
        page = (subject.run or folder) / "report.html"
        write_text(page, _page(subject, result, figures))
        print(f"report: {page}")


def _print_tables(subject: Subject, result: dict[str, Any]) -> None:
    where = result["evaluated_on"]
    counts = f"{result['train_images']} train images, {result['test_images']} test images"
    print(f"{subject.name} on {result['dataset']}: {counts}{'' if where == 'test' else f' ({where})'}\n")
    print(format_table(result["scores"], where) if result["scores"] else _LEFT_OUT)
    print("\n" + align(geometry_rows(result["geometry"])))


_LEFT_OUT = "not all images have labels: kNN, probes, retrieval and thickness are left out"


def _page(subject: Subject, result: dict[str, Any], figures: Figures) -> str:
    training: Figures = {}
    if subject.run:
        training["Training"] = draw_curves(subject.run), "Loss terms, learning rate and probe over time."
    measured = f"Accuracy in per cent on {result['evaluated_on']}, n = {result['test_images']}; RankMe over the same "
    return render_report(
        f"{Path(subject.name).name} on {result['dataset']}",
        scores=score_rows(result["scores"]),
        note=f"{measured}images." if result["scores"] else f"{_LEFT_OUT[0].upper()}{_LEFT_OUT[1:]}.",
        tables={"Geometry": geometry_rows(result["geometry"])},
        sections=training | figures,
        config=subject.config,
        environment=result["environment"],
    )
