"""Bundled weights travel in the wheel: built, installed into an empty folder, loaded offline from there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import timm
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]

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
import aotadmm_timm.hub.extract, aotadmm_timm.hub.pipeline, aotadmm_timm.hub.publish
assert not {"pyarrow", "matplotlib", "datasets", "sklearn", "tensorboard"} & set(sys.modules), "needs an extra"
"""


def test_weights_in_the_wheel_load_offline_from_a_clean_folder(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    shutil.copytree(ROOT / "aotadmm_timm", tree / "aotadmm_timm", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    weights = tree / "aotadmm_timm" / "weights"
    weights.mkdir(exist_ok=True)
    example = weights / "aot_admm_tiny.lejepa_cifar10.safetensors"
    if not example.exists():  # a checkout without the large files still proves the mechanism
        save_file(timm.create_model("aot_admm_tiny", num_classes=0).state_dict(), example)

    target = tmp_path / "installed"
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "dist"), str(tree)]
    subprocess.run(build, check=True, env=environment, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, env=environment)
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(target)],
        env={**environment, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert set(loaded.stdout.split()) == {file.stem for file in weights.glob("*.safetensors")}
