"""Every script explains itself at once: options need neither torch nor timm, whose import takes seconds."""

import subprocess
import sys

from scripts import ROOT

SCRIPTS = sorted(str(path.relative_to(ROOT)) for folder in ("train", "hub") for path in (ROOT / folder).glob("*.py"))

# Prints, for each script, its name, whether the docstring and an option were shown, and what was imported for it.
SHOW_HELP = """
import contextlib, io, runpy, sys
for script in sys.argv[1:]:
    sys.argv, shown, before = [script, "--help"], io.StringIO(), set(sys.modules)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        runpy.run_path(script, run_name="__main__")
    heavy = sorted({"matplotlib", "pandas", "timm", "torch"} & set(sys.modules) - before)
    print(script, "usage:" in shown.getvalue() and "(default: " in shown.getvalue(), *heavy)
"""


def test_help_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", SHOW_HELP, *SCRIPTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{script} True" for script in SCRIPTS]
