"""The code blocks of README.md, so that tests run what users copy."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    """The blocks that README says to save, by the file's name: the user's own layer, the user's own method."""
    python = blocks("python")
    marks = {"over_relaxed.py": "class OverRelaxedBlock", "mean_teacher.py": "class MeanTeacher"}
    return {name: next(block for block in python if mark in block) for name, mark in marks.items()}
