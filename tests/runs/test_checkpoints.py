"""Checkpoints: whole at every moment, plain types only, damaged ones named and stepped over."""

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from aotadmm_timm.errors import UserError
from aotadmm_timm.runs import checkpoints


def content(step: int) -> dict[str, Any]:
    state = {"w": torch.full((4,), float(step))}
    return {"step": step, "config": {}, "state": state, "window": [], "rng": torch.get_rng_state()}


def folder(run: Path) -> Path:
    return run / "checkpoints"


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def test_the_one_before_is_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoints.save(folder(tmp_path), content(step))
    assert sorted(p.name for p in folder(tmp_path).iterdir()) == ["last.pt", "previous.pt"]
    assert checkpoints.load(folder(tmp_path) / "previous.pt")["step"] == 2
    found = checkpoints.find("auto", tmp_path)
    assert found is not None
    assert found["step"] == 3
    assert torch.equal(found["state"]["w"], torch.full((4,), 3.0))


@pytest.mark.parametrize("moment", ["torch.save", "first replace", "second replace"])
def test_a_death_at_any_moment_leaves_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    for step in (1, 2):
        checkpoints.save(folder(tmp_path), content(step))

    class Death(BaseException):
        pass

    if moment == "torch.save":

        def half(obj: object, path: Path) -> None:
            Path(path).write_bytes(b"half a file")
            raise Death

        monkeypatch.setattr(torch, "save", half)
    else:
        real, calls = os.replace, []

        def replace(a: object, b: object) -> None:
            calls.append(b)
            if len(calls) == (1 if moment == "first replace" else 2):
                raise Death
            real(a, b)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Death):
        checkpoints.save(folder(tmp_path), content(3))
    monkeypatch.undo()
    found = checkpoints.find("auto", tmp_path)
    assert found is not None
    assert found["step"] == 2
    checkpoints.save(folder(tmp_path), content(4))  # and the next save works over what is lying about
    assert sorted(p.name for p in folder(tmp_path).iterdir()) == ["last.pt", "previous.pt"]


def test_a_damaged_one_is_named_and_the_previous_one_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        checkpoints.save(folder(tmp_path), content(step))
    damage(folder(tmp_path) / "last.pt")
    with caplog.at_level(logging.WARNING):
        found = checkpoints.find("auto", tmp_path)
    assert found is not None
    assert found["step"] == 1
    assert "last.pt: damaged" in caplog.text
    assert "previous.pt" in caplog.text
    checkpoints.save(folder(tmp_path), content(2))  # does not push the damaged file over the good one
    assert checkpoints.load(folder(tmp_path) / "previous.pt")["step"] == 1
    assert checkpoints.load(folder(tmp_path) / "last.pt")["step"] == 2


def test_a_flipped_bit_inside_a_tensor_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        checkpoints.save(folder(tmp_path), content(step))
    last = folder(tmp_path) / "last.pt"
    whole = bytearray(last.read_bytes())
    whole[whole.index(torch.full((4,), 2.0).numpy().tobytes())] ^= 1
    last.write_bytes(whole)
    assert not torch.equal(torch.load(last, weights_only=True)["state"]["w"], torch.full((4,), 2.0))  # torch is silent
    with caplog.at_level(logging.WARNING):
        found = checkpoints.find("auto", tmp_path)
    assert found is not None
    assert found["step"] == 1
    assert "last.pt: damaged, or not a checkpoint: wrong checksum" in caplog.text


@pytest.mark.parametrize("spoiled", [b"", b"\x80", b"\x80\x02.", b"PK\x03\x04", b"c\n\n.", b"\x80\x02h\x05."])
def test_any_spoiled_file_is_one_line(tmp_path: Path, spoiled: bytes) -> None:
    (tmp_path / "bad.pt").write_bytes(spoiled)
    with pytest.raises(UserError, match=r"bad\.pt: damaged, or not a checkpoint: \S") as caught:
        checkpoints.load(tmp_path / "bad.pt")
    assert "\n" not in str(caught.value)


def test_only_damaged_ones_are_an_error_never_a_fresh_start(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save(folder(tmp_path), content(step))
    for name in ("last.pt", "previous.pt"):
        damage(folder(tmp_path) / name)
    with pytest.raises(UserError, match=r"no checkpoint can be read: .*last\.pt: damaged.*previous\.pt: damaged"):
        checkpoints.find("auto", tmp_path)
    (folder(tmp_path) / "previous.pt").unlink()
    with pytest.raises(UserError, match=r"last\.pt: damaged"):
        checkpoints.find("auto", tmp_path)


def test_auto_without_a_checkpoint_starts_and_a_named_one_must_exist(tmp_path: Path) -> None:
    assert checkpoints.find("auto", tmp_path) is None
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoints.find(str(tmp_path), tmp_path)
    with pytest.raises(UserError, match="no such file or run folder"):
        checkpoints.find(str(tmp_path / "x.pt"), tmp_path)


def test_by_file_and_by_folder(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save(folder(tmp_path / "a"), content(step))
    for where, step in ((tmp_path / "a", 2), (folder(tmp_path / "a") / "previous.pt", 1)):
        found = checkpoints.find(str(where), tmp_path / "b")
        assert found is not None
        assert found["step"] == step


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch " + os.environ["HOSTILE_MARK"],)


@pytest.mark.parametrize(
    "save", [lambda o, p: torch.save(o, p), lambda o, p: p.write_bytes(pickle.dumps(o, protocol=2))]
)
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Any) -> None:
    mark = tmp_path / "ran"
    monkeypatch.setenv("HOSTILE_MARK", str(mark))
    save({**content(1), "extra": Hostile()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"bad\.pt: damaged, or not a checkpoint"):
        checkpoints.load(tmp_path / "bad.pt")
    assert not mark.exists()


def test_other_files_are_not_checkpoints(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weight": torch.ones(1)}, tmp_path / "weights.pt")
    torch.save({k: v for k, v in content(1).items() if k != "rng"}, tmp_path / "part.pt")
    for name in ("list.pt", "weights.pt", "part.pt"):
        with pytest.raises(UserError, match="not a training checkpoint"):
            checkpoints.load(tmp_path / name)
