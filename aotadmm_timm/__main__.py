"""What there is, a line each: `python -m aotadmm_timm` lists models, tags, methods, regularizers and recipes."""

import sys
from collections.abc import Iterator
from pathlib import Path

from aotadmm_timm.engine.method_names import METHODS, locate
from aotadmm_timm.errors import UserError, nearest

Rows = Iterator[tuple[str, str]]


def models() -> Rows:
    """timm.create_model(NAME)"""
    import timm
    from timm.models import model_entrypoint

    for name in timm.list_models():
        entry = model_entrypoint(name)
        if entry.__module__.startswith("aotadmm_timm.") and not name.startswith("test_"):
            yield name, _first_line(entry.__doc__)


def tags() -> Rows:
    """timm.create_model(NAME, pretrained=True), offline: the weights lie in the package. A bare name takes its tag."""
    import timm
    from timm.models import get_pretrained_cfg, model_entrypoint

    for name in timm.list_pretrained():
        if model_entrypoint(name).__module__.startswith("aotadmm_timm."):
            config = get_pretrained_cfg(name)
            if config is not None and "." in name:
                height, width = config.input_size[1:]
                yield name, f"for images of {height}x{width} pixels"


def methods() -> Rows:
    """python train/pretrain.py --method NAME"""
    for name in METHODS:
        text = (locate(name)[0]).read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
        yield name, _first_line(text)


def regularizers() -> Rows:
    """in SIGReg's place, --regularizer NAME or 'NAME(argument=value)'"""
    from aotadmm_timm.losses import REGULARIZERS

    for name, entry in REGULARIZERS.items():
        blind = " (does not see the scale: with --normalize only)" if entry.scale_blind else ""
        yield name, entry.line + blind


def recipes() -> Rows:
    """python train/SCRIPT.py --config train/recipes/NAME, in a checkout"""
    for path in sorted((Path(__file__).parents[1] / "train" / "recipes").glob("*.yaml")):
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("# "):
                break
            lines.append(line[2:])
        text = " ".join(lines)
        yield path.name, text.partition(". ")[0].removesuffix(".") + "."


SECTIONS = {"models": models, "tags": tags, "methods": methods, "regularizers": regularizers, "recipes": recipes}


def _first_line(text: str | None) -> str:
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def listing(section: str) -> str:
    """One section as text, names in a column."""
    rows = list(SECTIONS[section]())
    width = max((len(name) for name, _ in rows), default=0)
    head = f"{section}: {_first_line(SECTIONS[section].__doc__)}"
    return "\n".join([head, *(f"  {name.ljust(width)}  {line}".rstrip() for name, line in rows)])


def main(arguments: list[str]) -> None:
    """Print the sections that are asked for, all of them if none is."""
    for name in arguments:
        if name not in SECTIONS:
            raise UserError(f"{name}: is one of {', '.join(SECTIONS)}{nearest(name, list(SECTIONS))}")
    print("\n\n".join(listing(name) for name in arguments or SECTIONS))


if __name__ == "__main__":
    from aotadmm_timm.cli import run

    run(lambda: main(sys.argv[1:]))
