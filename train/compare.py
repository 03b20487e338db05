"""Runs side by side: mean and spread over seeds, grouped by the options that differ.

    python train/compare.py runs/a_s0 runs/a_s1 runs/b_s0 runs/b_s1       compare.csv, compare.tex, compare.png
    python train/compare.py RUN RUN --keep train/results                  small records for the repository
    python train/compare.py --results train/RESULTS.md                    the tables of that file anew, from the records

A table in RESULTS.md stands between `<!-- table: GLOB,GLOB -->` and `<!-- end -->`; each GLOB names records beside it
in results/. Spread is the sample standard deviation over runs. `<!-- correlations: GLOB,GLOB -->` starts a table of how
losses and ranks at the end of those runs order them, against their accuracy.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.comparison import as_csv, as_latex, as_markdown, as_text, draw, group, table
from aotadmm_timm.runs.correlation import rank_correlations
from aotadmm_timm.runs.folder import write_text
from aotadmm_timm.runs.records import read_record, write_record

_TABLE = re.compile(r"(<!-- (table|correlations): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Config:
    runs: tuple[str, ...] = option((), "run folders, or records of runs (.jsonl)")
    output: str = option(".", "folder for compare.csv, compare.tex and compare.png")
    keep: str | None = option(None, "write a small record of each run into this folder instead")
    results: str | None = option(None, "Markdown file whose tables are made anew from the records in results/")


def regenerate(text: str, records: Path) -> str:
    """The text of a results file with every table made anew from the records in a folder."""

    def fill(match: re.Match[str]) -> str:
        paths = [path for glob in match[3].split(",") for path in sorted(records.glob(glob + ".jsonl"))]
        if not paths:
            raise UserError(f"{match[2]} {match[3]}: no such record in {records}")
        found = [read_record(path) for path in dict.fromkeys(paths)]
        if match[2] == "correlations":
            return f"{match[1]}{as_markdown(rank_correlations(found))}\n{match[4]}"
        commands = dict.fromkeys(re.sub(r" --seed \S+", "", record.command) for record in found)
        lines = "\n".join(f"    {command}" for command in commands if command)
        return f"{match[1]}{as_markdown(table(group(found)))}\n\n{lines}\n{match[4]}"

    return _TABLE.sub(fill, text)


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("runs",))
    if cfg.results:
        path = Path(cfg.results)
        write_text(path, regenerate(path.read_text(encoding="utf-8"), path.parent / "results"))
        return
    if not cfg.runs:
        raise UserError("which runs? Name their folders")
    records = [read_record(path) for path in cfg.runs]
    if cfg.keep:
        for record in records:
            print(write_record(record, Path(cfg.keep)))
        return
    groups = group(records)
    rows, folder = table(groups), Path(cfg.output)
    write_text(folder / "compare.csv", as_csv(rows))
    write_text(folder / "compare.tex", as_latex(rows))
    draw(groups, folder / "compare.png")
    print(as_text(rows))


if __name__ == "__main__":
    run(main)
