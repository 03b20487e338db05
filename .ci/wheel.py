"""The wheel: built, installed into an empty folder, and used offline from there; bundled weights travel in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import timm
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]

# Runs beside the installed wheel; prints the file of every cfg whose weights it could load from there.
LOAD = """
import pathlib, sys
installed = pathlib.Path(sys.argv[1])
import aotadmm_timm, timm, torch
from safetensors.torch import load_file
assert pathlib.Path(aotadmm_timm.__file__).is_relative_to(installed), aotadmm_timm.__file__
for name in timm.list_models(pretrained=True):
    file = timm.get_pretrained_cfg(name).file
    if file and pathlib.Path(file).is_relative_to(installed):
        model, stored = timm.create_model(name, pretrained=True), load_file(file)
        assert all(torch.equal(model.state_dict()[key], value) for key, value in stored.items()), name
        print(pathlib.Path(file).stem)
import aotadmm_timm.extractor, aotadmm_timm.hub.pipeline, aotadmm_timm.hub.publish
assert not {"pyarrow", "matplotlib", "datasets", "sklearn", "tensorboard"} & set(sys.modules), "needs an extra"
"""


def check(folder: Path) -> list[str]:
    """Names of the weights that load from an installed wheel; all work is done in `folder`."""
    tree = folder / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    shutil.copytree(ROOT / "aotadmm_timm", tree / "aotadmm_timm", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    weights = tree / "aotadmm_timm" / "weights"
    weights.mkdir(exist_ok=True)
    example = weights / "aot_admm_tiny.lejepa_cifar10.safetensors"
    if not example.exists():  # a checkout without the large files still proves the mechanism
        save_file(timm.create_model("aot_admm_tiny", num_classes=0).state_dict(), example)

    target = folder / "installed"
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(tree)]
    subprocess.run(build, check=True, env=environment, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, env=environment)
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(target)],
        env={**environment, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if loaded.returncode:
        raise SystemExit(loaded.stderr)
    names = sorted(set(loaded.stdout.split()))
    if names != sorted(file.stem for file in weights.glob("*.safetensors")):
        raise SystemExit(f"of the weights in {weights}, the wheel gave {', '.join(names) or 'none'}")
    return names


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(f"wheel: {', '.join(check(Path(scratch)))}")
