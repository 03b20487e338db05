"""The code blocks of README.md, so that tests run what users copy."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def over_relaxed() -> str:
    """The user's own layer, a file of its own."""
    (block,) = [b for b in blocks("python") if "class OverRelaxedBlock" in b]
    return block
