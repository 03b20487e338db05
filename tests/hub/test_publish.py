"""Pushing to a Hub that works and to Hubs that fail in every way the network offers; the requests are real."""

import json
import os
import pickle
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from huggingface_hub.utils import _http
from loopback_hub import TOKEN, LoopbackHub
from safetensors import safe_open
from safetensors.torch import save_file

from aotadmm_timm.errors import Unreachable, UserError
from aotadmm_timm.hub.publish import prepare, publish
from aotadmm_timm.pretrained import read_weights

MakeRun = Callable[..., Path]
REPO = "org/name"
# huggingface_hub calls its HTTP library in an old way
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def test_a_push_is_one_commit_of_weights_config_card_and_figure(make_run: MakeRun, hub: LoopbackHub) -> None:
    run = make_run()
    url = publish(run, REPO, private=True)
    repository = hub.repositories[REPO]
    assert url.endswith(repository.branches["main"])
    assert repository.private
    assert len(repository.commits) == 2  # the Hub's own first one, and ours
    assert set(hub.files(REPO)) == {".gitattributes", "README.md", "config.json", "curves.png", "model.safetensors"}
    (run / "pushed.safetensors").write_bytes(hub.files(REPO)["model.safetensors"])
    with safe_open(run / "pushed.safetensors", "pt") as pushed:
        assert pushed.metadata() == {"format": "pt"}


def test_pushing_again_updates_the_weights_and_keeps_an_edited_card(make_run: MakeRun, hub: LoopbackHub) -> None:
    publish(make_run("first"), REPO)
    first = hub.files(REPO)
    hub.repositories[REPO].commits[hub.repositories[REPO].branches["main"]]["README.md"].content = b"edited by hand"
    second = make_run("second")
    publish(second, REPO)
    assert hub.files(REPO)["README.md"] == b"edited by hand"
    assert hub.files(REPO)["model.safetensors"] != first["model.safetensors"]
    publish(second, REPO, overwrite_card=True)
    assert hub.files(REPO)["README.md"] == first["README.md"]


def test_a_revision_is_a_branch_made_if_missing(make_run: MakeRun, hub: LoopbackHub) -> None:
    publish(make_run(), REPO, revision="v1")
    assert "model.safetensors" in hub.files(REPO, "v1")
    assert set(hub.files(REPO)) == {".gitattributes"}
    publish(make_run("second"), REPO, revision="v2")
    assert "model.safetensors" in hub.files(REPO, "v2")


def test_multipart_uploads_and_one_that_is_cut_half_way_arrive_whole(make_run: MakeRun, hub: LoopbackHub) -> None:
    hub.multipart, hub.faults.cut_uploads = 400_000, 1
    run = make_run()
    publish(run, REPO)
    assert hub.requests.count("PUT store") > 3
    (run / "pushed.safetensors").write_bytes(hub.files(REPO)["model.safetensors"])
    assert set(read_weights(run / "pushed.safetensors")) == set(read_weights(run / "encoder" / "model.safetensors"))


def test_a_file_that_fails_leaves_the_remote_as_it_was_and_a_retry_works(make_run: MakeRun, hub: LoopbackHub) -> None:
    run = make_run()
    hub.faults.refuse_upload = 2
    with pytest.raises(ValueError, match="403"):
        publish(run, REPO)
    assert hub.repositories == {}  # the repository that this push had made is gone again
    hub.faults.refuse_upload = None
    publish(run, REPO)
    before = hub.files(REPO)
    other = make_run("other")
    (other / "curves.png").write_bytes((run / "curves.png").read_bytes() + b"\0")
    hub.faults.refuse_upload = hub.requests.count("PUT store") + 2
    with pytest.raises(ValueError, match="403"):
        publish(other, REPO, overwrite_card=True)
    assert hub.files(REPO) == before
    hub.faults.refuse_upload = None
    publish(other, REPO, overwrite_card=True)
    assert hub.files(REPO) != before


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"info": 401}, r"refused the token \(401\)"),
        ({"create": 403}, r"may not write to org/name \(403\)"),
        ({"create": 404}, r"owner org was not found \(404\)"),
        ({"preupload": 413}, "status 413; probably nothing was changed, a retry is safe"),
    ],
)
def test_a_refusal_is_one_clear_line(
    status: dict[str, int], message: str, make_run: MakeRun, hub: LoopbackHub, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.faults.status = status
    with pytest.raises(ValueError, match=message) as caught:
        publish(make_run(), REPO)
    assert "\n" not in str(caught.value)
    assert TOKEN not in str(caught.value) + "".join(capfd.readouterr())
    assert hub.repositories == {}


def test_a_taken_name_a_moved_branch_and_a_wrong_token_are_named(
    make_run: MakeRun, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    hub.faults.hidden = {"other/taken"}
    with pytest.raises(ValueError, match=r"name other/taken is taken"):
        publish(run, "other/taken")
    publish(run, REPO)
    hub.faults.moved_branch = True
    with pytest.raises(ValueError, match=r"moved while this push ran"):
        publish(make_run("other"), REPO)
    assert "other.txt" in hub.files(REPO)
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    with pytest.raises(ValueError, match="401") as caught:
        publish(run, REPO)
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="no token"):
        publish(run, REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ValueError, match="offline mode"):
        publish(run, REPO)


@pytest.mark.parametrize(
    "route", ["info", "create", "branch", "preupload", "lfs_batch", "store", "verify", "commit", "paths_info"]
)
def test_a_hub_that_falls_silent_is_given_up(route: str, make_run: MakeRun, hub: LoopbackHub) -> None:
    hub.faults.silent = {route}
    factory = _http._GLOBAL_CLIENT_FACTORY
    began = time.monotonic()
    with pytest.raises(UserError, match=r"silent for 1 s while|silent for 1 s;|was made, but could not be checked"):
        publish(make_run(), REPO, revision="v1", timeout=1)
    assert time.monotonic() - began < 8
    if route != "paths_info":
        assert not any(
            "model.safetensors" in hub.files(repo, b) for repo, r in hub.repositories.items() for b in r.branches
        )
    if route in ("preupload", "lfs_batch", "store", "verify", "branch"):
        assert hub.repositories == {}  # it still answers other requests: what this push had made is gone again
    assert _http._GLOBAL_CLIENT_FACTORY is factory


def test_a_commit_that_cannot_be_checked_is_kept_and_said_to_be_made(make_run: MakeRun, hub: LoopbackHub) -> None:
    hub.faults.status = {"paths_info": 403}
    with pytest.raises(ValueError, match=r"/org/name/commit/\w+ was made, but could not be checked"):
        publish(make_run(), REPO, revision="v1")
    assert "model.safetensors" in hub.files(REPO, "v1")


def test_a_socket_that_accepts_and_never_answers_is_given_up(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        with pytest.raises(Unreachable, match=r"silent for 2 s while connecting"):
            publish(make_run(), REPO, timeout=2)


def test_the_default_deadline_is_within_a_minute() -> None:
    assert publish.__kwdefaults__["timeout"] < 60


def test_a_dry_run_needs_neither_network_nor_token(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    run = make_run()
    assert publish(run, REPO, dry_run=tmp_path / "out" / "look") == str(tmp_path / "out" / "look")
    written = tmp_path / "out" / "look"
    assert {f.name for f in written.iterdir()} == {"README.md", "config.json", "curves.png", "model.safetensors"}
    assert (written / "model.safetensors").stat().st_mode & 0o044 == 0o044
    with pytest.raises(ValueError, match="not an empty folder"):
        publish(run, REPO, dry_run=written)
    (tmp_path / "out" / "again.part").mkdir()  # somebody else's
    assert publish(run, REPO, dry_run=f"{tmp_path}/out/again/")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["again", "again.part", "look"]


def test_config_json_builds_in_timm_and_in_transformers(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(num_classes=5)
    prepare(run, tmp_path / "out", repo_id=REPO)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_classes"] == 5
    # transformers' TimmWrapper makes exactly this call; a num_classes among the model_args breaks it.
    model = timm.create_model(config["architecture"], pretrained=False, num_classes=5, **config["model_args"])
    model.load_state_dict(read_weights(tmp_path / "out" / "model.safetensors"))
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(images), model.eval()(images))
    assert loaded(images).shape == (2, 5)


def test_a_training_checkpoint_is_pushed_with_its_runs_records(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    weights = read_weights(run / "encoder" / "model.safetensors")
    changed = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    method = {f"backbone.{name}": tensor for name, tensor in changed.items()} | {"projector.bias": torch.zeros(3)}
    (run / "checkpoints").mkdir()
    last, state = run / "checkpoints" / "last.pt", {"method": method, "optimizer": {"state": {}}}
    torch.save({"step": 7, "state": state}, last)
    shutil.rmtree(run / "encoder")  # a run that has not finished
    with pytest.raises(ValueError, match="has not finished"):
        prepare(run, tmp_path / "out", repo_id=REPO)
    prepare(last, tmp_path / "out", repo_id=REPO)
    pushed = read_weights(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(pushed[name], changed[name]) for name in changed)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "uoft-cs/cifar10" in card
    assert "## Results" not in card  # the scores are those of the finished run
    average = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"step": 7, "state": {**state, "ema": average}}, last)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in read_weights(last).items())


def test_a_bare_weights_file_needs_its_models_name(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="--model"):
        prepare(tmp_path / "w.safetensors", tmp_path / "out", repo_id=REPO)
    with pytest.raises(ValueError, match=r"w\.safetensors: does not fit aot_admm_tiny"):
        prepare(tmp_path / "w.safetensors", tmp_path / "out", repo_id=REPO, model="aot_admm_tiny")
    prepare(tmp_path / "w.safetensors", tmp_path / "out", repo_id=REPO, model="test_vit")
    assert (tmp_path / "out" / "README.md").is_file()


def test_a_file_that_does_not_fit_is_refused_by_its_keys(tmp_path: Path) -> None:
    save_file({"foo": torch.zeros(3)}, tmp_path / "foo.safetensors")
    for name in ("test_vit", "test_resnet"):
        with pytest.raises(ValueError, match=rf"foo\.safetensors: does not fit {name}: .*Missing key"):
            prepare(tmp_path / "foo.safetensors", tmp_path / "out", repo_id=REPO, model=name)
    with pytest.raises(ValueError, match=r"does not fit test_aot_admm: .*foo \(3,\) has no place"):
        prepare(tmp_path / "foo.safetensors", tmp_path / "out", repo_id=REPO, model="test_aot_admm")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["test_vit", "test_aot_admm"])
def test_the_classifier_of_a_file_is_published_with_it(name: str, tmp_path: Path) -> None:
    weights = timm.create_model(name, num_classes=10).state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    prepare(tmp_path / "w.safetensors", tmp_path / "out", repo_id=REPO, model=name)
    pushed = read_weights(tmp_path / "out" / "model.safetensors")
    assert pushed.keys() == weights.keys()
    assert all(torch.equal(pushed[key], weights[key]) for key in weights)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_classes"] == 10


def test_bad_input_is_refused_before_anything_is_written(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such run"):
        publish(tmp_path / "absent", REPO)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither a run"):
        publish(tmp_path / "empty", REPO)
    run = make_run()
    for bad in ("name", "a/b/c", "../up", "org/na me"):
        with pytest.raises(ValueError, match="not a Hub id"):
            publish(run, bad, dry_run=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_diverged_model_is_not_published(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    weights = read_weights(run / "encoder" / "model.safetensors")
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, run / "encoder" / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} holds values that are not finite"):
        prepare(run, tmp_path / "out", repo_id=REPO)


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran-the-code",)


def test_a_pickle_with_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": _Hostile()}, tmp_path / "hostile.pt")
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(_Hostile()))
    for name in ("hostile.pt", "raw.pth"):
        with pytest.raises(ValueError, match=f"{name}: refused"):
            publish(name, REPO, model="test_vit", dry_run="out")
    assert not (tmp_path / "ran-the-code").exists()


def test_a_figure_that_is_a_link_or_no_picture_is_not_published(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    (tmp_path / "secret").write_text("private")
    (run / "curves.png").unlink()
    (run / "curves.png").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"curves\.png: not a PNG file of its own"):
        prepare(run, tmp_path / "out", repo_id=REPO)
