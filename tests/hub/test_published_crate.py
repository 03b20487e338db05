"""Published layouts in, timm folders out; the head count is never guessed."""

import json
from pathlib import Path

import pytest
import timm
import torch
from models.literal import crate
from models.weights import draw, images, published_crate, published_crate_alpha
from scripts import run_script

from aotadmm_timm.cli import run
from aotadmm_timm.hub.published_crate import KNOWN_HEADS, Layout, convert, layout_of

SMALL = {"patch": 8, "width": 48, "depth": 3, "classes": 10, "size": 32}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = {f"module.{key}": tensor for key, tensor in published_crate(**SMALL).items()}
    torch.save({"epoch": 7, "state_dict": state}, tmp_path / "official.pth")
    return tmp_path / "official.pth"


def test_converted_folder_computes_the_same(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert(checkpoint, tmp_path / "out" / "crate", model="test_crate", num_heads=6)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["crate"]
    assert json.loads((folder / "config.json").read_text())["model_args"]["num_heads"] == 6
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = images(2, 3, 32, 32)
    want = crate(published_crate(**SMALL), x, patch=8, heads=6)
    torch.testing.assert_close(model(x).double(), want, rtol=0, atol=1e-5)


def test_heads_of_published_layouts() -> None:
    demo = published_crate(patch=8, width=2, depth=12, classes=2, size=8)
    demo |= draw({"head.weight": (5, 2), "head.bias": (5,)})
    assert layout_of(demo) == Layout("linear", 8, 2, 12, True)
    assert layout_of(published_crate(patch=16, width=4, depth=2, classes=2, size=16)) == Layout(
        "linear", 16, 4, 2, False
    )
    alpha = published_crate_alpha(patch=14, width=4, depth=2, classes=2, size=14)
    assert layout_of(alpha) == Layout("conv", 14, 4, 2, False)
    widths = {"tiny": 6, "small": 12, "base": 12, "large": 16}
    for size, heads in widths.items():
        model = timm.create_model(f"crate_{size}_patch16_224", device="meta")
        assert KNOWN_HEADS[Layout("linear", 16, model.embed_dim, len(model.blocks), False)] == heads
        assert model.blocks[0].attn.num_heads == heads
    assert KNOWN_HEADS[Layout("linear", 8, 768, 12, True)] == 6


def test_a_known_layout_needs_no_head_count(tmp_path: Path) -> None:
    state = published_crate(patch=16, width=384, depth=12, classes=3, size=224)
    torch.save(state, tmp_path / "crate_tiny.pth")
    folder = convert(tmp_path / "crate_tiny.pth", tmp_path / "out", model="crate_tiny_patch16_224")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_args"]["num_heads"], config["num_classes"]) == (6, 3)
    assert config["pretrained_cfg"]["origin_url"] == "https://github.com/Ma-Lab-Berkeley/CRATE"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"model": "test_crate"}, "give --num-heads"),
        ({"model": "no_such_model", "num_heads": 3}, "'no_such_model'"),
        ({"model": "test_crate_alpha", "num_heads": 3}, "does not fit CRATE: "),
        ({"model": "test_vit_mlpfree", "num_heads": 3}, "no unrolled transformer"),
        ({"model": "crate_tiny", "num_heads": 6}, r"\(1, 1, 48\) in the checkpoint, \(1, 1, 384\) in the model"),
        ({"model": "crate_tiny_patch16_224", "num_heads": 6}, r"\(1, 17, 48\) in the checkpoint, \(1, 197, 384\)"),
        ({"model": "test_crate", "num_heads": 0}, "must be positive, got 0"),
        ({"model": "test_crate", "num_heads": -3}, "must be positive, got -3"),
        ({"model": "test_crate", "num_heads": 7}, "embed_dim=48, num_heads=7"),
    ],
)
def test_refusals(checkpoint: Path, tmp_path: Path, kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(checkpoint, tmp_path / "out", **kwargs)
    assert not (tmp_path / "out").exists()


def test_folder_in_use(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not an empty folder"):
        convert(checkpoint, tmp_path / "out", model="test_crate", num_heads=3)


class Hostile:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("ran_code"),))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", {"state_dict": Hostile()}])
def test_unreadable_files(content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path("bad.pth").write_bytes(content)
    else:
        torch.save(content, "bad.pth")
    with pytest.raises(ValueError, match=r"bad\.pth: refused: not a checkpoint of tensors and plain data"):
        convert("bad.pth", "out", model="test_crate", num_heads=3)
    assert not Path("ran_code").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"conv1.weight": torch.zeros(2, 2)}])
def test_files_of_something_else(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"other\.pth: "):
        convert(tmp_path / "other.pth", tmp_path / "out", model="test_crate", num_heads=3)


def test_script(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("hub/convert.py", checkpoint, "out", "--model", "test_crate")
    with pytest.raises(SystemExit) as refused:
        run(lambda: run_script(*command))
    assert refused.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    run_script(*command, "--num-heads", "3")
    assert (tmp_path / "out" / "model.safetensors").is_file()
