"""The run folder: what is refused, the log after a kill, the exported encoder."""

import json
from pathlib import Path

import pytest
import timm
import torch

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs.curves import CurvesInTraining, draw_curves
from aotadmm_timm.runs.folder import RunFolder, images_per_second, read_log, write_text


def rows(n: int) -> list[dict[str, float]]:
    return [{"step": i, "epoch": i, "loss": 1 / i, "lr": 0.1, "images_per_s": 10.0 * i} for i in range(1, n + 1)]


@pytest.mark.parametrize("mark", ["config.yaml", "log.jsonl", "checkpoints"])
def test_a_folder_with_a_run_is_refused(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).touch()
    with pytest.raises(UserError, match=r"already holds a run: --resume auto continues it, --output"):
        RunFolder(tmp_path)
    RunFolder(tmp_path, resume=True)


def test_other_files_do_not_matter_and_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    RunFolder(tmp_path)
    RunFolder(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="is a file"):
        RunFolder(tmp_path / "notes.txt")


def test_a_torn_last_line_is_left_out_and_mended(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for row in rows(5):
        run.log(row)
    run.close()
    text = run.log_path.read_text()
    run.log_path.write_text(text[:-30])
    assert [r["step"] for r in read_log(run.log_path)] == [1, 2, 3, 4]
    run.rewind_log(3)
    assert read_log(run.log_path) == rows(3)
    for row in rows(5)[3:]:
        run.log(row)
    run.close()
    assert run.log_path.read_text() == text


def test_rewind_without_a_log(tmp_path: Path) -> None:
    RunFolder(tmp_path / "x").rewind_log(0)
    assert read_log(tmp_path / "x" / "log.jsonl") == []


def test_speed_is_the_median(tmp_path: Path) -> None:
    write_text(
        tmp_path / "log.jsonl", "".join(json.dumps(r) + "\n" for r in rows(5)) + '{"step": 5, "offline_knn20": 1}\n'
    )
    assert images_per_second(tmp_path / "log.jsonl") == 30.0
    assert images_per_second(tmp_path / "none.jsonl") is None


def test_encoder_loads_with_timm_alone(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0, img_size=32)
    run = RunFolder(tmp_path)
    run.save_encoder(model, model_args={"img_size": 32})
    run.save_encoder(model, model_args={"img_size": 32})  # over an older one
    assert sorted(p.name for p in run.encoder.iterdir()) == ["config.json", "model.safetensors"]
    loaded = timm.create_model(f"local-dir:{run.encoder}", pretrained=True).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(x), model.eval()(x))


def test_curves_show_every_term(tmp_path: Path) -> None:
    lines = [*rows(4), {"step": 4, "epoch": 4, "offline_knn20": 0.5}]
    write_text(tmp_path / "log.jsonl", "".join(json.dumps(r) + "\n" for r in lines))
    path = draw_curves(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_curves_of_an_empty_log(tmp_path: Path) -> None:
    assert draw_curves(tmp_path).is_file()


def test_curves_are_drawn_at_most_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "epoch": 1, "lr": 0.1, "loss": 1.0}\n')
    curves, png = CurvesInTraining(tmp_path), tmp_path / "curves.png"
    curves()
    assert not png.exists()
    now += 60
    curves()
    png.unlink()  # FileNotFoundError if it was not drawn
    now += 59
    curves()
    assert not png.exists()
