"""Imports inside the package point one way, so that any part can be read without the parts above it."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import aotadmm_timm

PACKAGE = Path(aotadmm_timm.__file__).parent

# Each part may import itself and what is listed; everything may use FOUNDATION.
FOUNDATION = {"autograd", "cli", "distributed", "errors", "evaluating", "options", "plugin", "precision"}
ALLOWED = {
    "__main__": {"engine", "losses"},
    "autograd": set(),
    "errors": set(),
    "evaluating": set(),
    "cli": set(),
    "options": set(),
    "plugin": set(),
    "registration": {"models"},
    "runs": set(),
    "distributed": set(),
    "precision": set(),
    "layers": set(),
    "losses": {"theory"},
    "theory": set(),
    "models": {"layers"},
    "contract": {"models", "layers"},
    "pretrained": {"models", "runs"},
    "data": {"models"},
    "methods": {"losses", "models", "theory"},
    "evaluation": {"models", "layers", "data", "theory", "losses", "methods", "pretrained", "runs"},
    "extractor": {"data", "pretrained"},
    "hub": {"models", "layers", "data", "pretrained", "extractor", "runs"},
    "engine": {"models", "losses", "methods", "data", "evaluation", "theory", "pretrained", "runs"},
}


def part_of(module: str) -> str | None:
    names = module.split(".")
    return names[1] if names[0] == "aotadmm_timm" and len(names) > 1 else None


def imported_names(path: Path) -> set[str]:
    """Everything that a file imports, also inside its functions, as absolute names; those of modules end in a name."""
    names = set()
    package = ["aotadmm_timm", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{prefix}.{alias.name}" for alias in node.names}
    return names


def imported_parts(path: Path) -> set[str]:
    return {part for name in imported_names(path) if (part := part_of(name)) in ALLOWED}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor inside functions, where a circle would only be put off. The package itself hands out names on first use."""
    modules = {
        ".".join(["aotadmm_timm", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    del modules["aotadmm_timm"]
    graph = {
        module: {
            found
            for name in imported_names(path)
            if (found := name if name in modules else name.rpartition(".")[0]) in modules and found != module
        }
        for module, path in modules.items()
    }
    assert graph["aotadmm_timm.data.datasets"] >= {"aotadmm_timm.data.shards", "aotadmm_timm.data.samples"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_imports_point_one_way() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE)
        part = relative.parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        extra = imported_parts(path) - ALLOWED[part] - {part} - FOUNDATION
        wrong += [f"{relative} imports {other}" for other in sorted(extra)]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_a_script() -> None:
    for folder in ("train", "hub"):
        scripts = {p.stem for p in (PACKAGE.parent / folder).glob("*.py")}
        for path in PACKAGE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    assert node.module.split(".")[0] not in ("train", "hub"), path
                if isinstance(node, ast.Import):
                    assert not {a.name for a in node.names} & scripts, path
