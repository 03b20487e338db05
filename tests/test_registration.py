"""`import aotadmm_timm` registers the models with timm, without importing timm or torch itself.

That timm may be imported first, all other tests show: they import it first.
"""

import subprocess
import sys

import pytest

CREATES = "assert type(timm.create_model('aot_admm_nano')).__module__ == 'aotadmm_timm.models.aot_admm'"


def python(*lines: str) -> str:
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_alone_imports_neither_torch_nor_timm() -> None:
    light = "import aotadmm_timm, aotadmm_timm.cli, aotadmm_timm.options, aotadmm_timm.runs.comparison, sys"
    assert python(light, "print(*{'torch', 'timm', 'numpy'} & set(sys.modules))") == "\n"


@pytest.mark.parametrize(
    "lines",
    [
        ("import aotadmm_timm.models.aot, timm",),
        # a library that asks whether there is a timm, and one that imports a part of it
        ("import aotadmm_timm, importlib.util", "importlib.util.find_spec('timm')", "import timm.layers, timm"),
    ],
    ids=["models first", "package first"],
)
def test_timm_knows_the_models(lines: tuple[str, ...]) -> None:
    left = "import sys; assert not any(type(f).__module__.startswith('aotadmm') for f in sys.meta_path)"
    python(*lines, CREATES, left, "import aotadmm_timm; assert aotadmm_timm.models.__name__ == 'aotadmm_timm.models'")
