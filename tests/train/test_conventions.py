"""train/conventions.py: the page in the repository is what it prints; one lambda in every other code."""

from pathlib import Path

import pytest
from scripts import ROOT, call_script, load_script

from aotadmm_timm.errors import UserError
from aotadmm_timm.theory.conventions import CONVENTIONS, OURS, translate


def test_the_page_is_the_one_in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "CONVENTIONS.md"
    call_script(monkeypatch, "train/conventions.py", "--page", str(page))
    assert page.read_text(encoding="utf-8") == (ROOT / "train" / "CONVENTIONS.md").read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["CONVENTIONS.md"]
    text = load_script("train/conventions.py").page()
    assert all(name in text for name in CONVENTIONS)


def test_a_lambda_in_every_other_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--lamb", "10", "--from", "eb_jepa", "--global-views", "2", "--local-views", "0", "--dim", "128"]
    call_script(monkeypatch, "train/conventions.py", *flags)
    first, _, header, *rows = capsys.readouterr().out.splitlines()
    assert first == "lambda 10 of eb_jepa, 2 + 0 views, batch 256, 128 dimensions:"
    assert header.split()[:2] == ["in", "lambda"]
    shown = {row.split("  ")[0]: row.split()[1 if "--" not in row.split("  ")[0] else 3] for row in rows}
    assert {*CONVENTIONS} - {"eb_jepa"} == {name for name in shown if "--" not in name}
    found = translate(10, "eb_jepa", OURS, 256, (2, 0), 128)
    assert shown[OURS.name] == f"~{found.lamb:.3g}"
    assert shown["visreg"] == "-"
    with pytest.raises(UserError, match="nearest known: eb_jepa"):
        call_script(monkeypatch, "train/conventions.py", "--from", "ebjepa")
