"""One model, whatever its weights lie in; overrides; and the kind of every refusal."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from huggingface_hub import constants
from loopback_hub import File, LoopbackHub, Repository
from safetensors.torch import load_file, save_file

from aotadmm_timm.errors import DamagedFile, ModelNotFound, Unreachable, UserError, WeightsMismatch
from aotadmm_timm.pretrained import hub_snapshot, open_model

MakeRun = Callable[..., Path]
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}


@pytest.fixture
def run(make_run: MakeRun) -> Path:
    """A finished run of a classifier of seven classes, with a checkpoint of its training."""
    run = make_run(num_classes=7, **SMALL)
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"model_args": SMALL}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    weights = load_file(run / "encoder" / "model.safetensors")
    method = {f"backbone.{name}": tensor for name, tensor in weights.items()} | {"projector.bias": torch.zeros(3)}
    (run / "checkpoints").mkdir()
    torch.save({"step": 7, "state": {"method": method, "optimizer": {}}}, run / "checkpoints" / "last.pt")
    shutil.copy(run / "encoder" / "model.safetensors", run.parent / "lone.safetensors")
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"epoch": 3, "state_dict": wrapped, "args": {"lr": 0.1}}, run.parent / "lone.pth")
    return run


@pytest.mark.parametrize(
    ("place", "overrides", "finished"),
    [
        ("{run}", {}, True),
        ("{run}/encoder", {}, True),
        ("{run}/encoder/model.safetensors", {}, True),
        ("local-dir:{run}/encoder", {}, True),
        ("{run}/checkpoints/last.pt", {}, False),
        ("{run}/../lone.safetensors", {"model": "aot_admm_tiny", "model_kwargs": SMALL}, None),
        ("{run}/../lone.pth", {"model": "aot_admm_tiny", "model_kwargs": SMALL}, None),
    ],
)
def test_every_source_gives_the_same_model(
    run: Path, place: str, overrides: dict[str, Any], finished: bool | None
) -> None:
    want = timm.create_model(f"local-dir:{run}/encoder", pretrained=True).eval()
    before = torch.get_rng_state()
    model, origin = open_model(place.format(run=run), **overrides)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(IMAGES), want(IMAGES))
    assert origin.architecture == model.pretrained_cfg["architecture"] == "aot_admm_tiny"
    if finished is None:
        assert (origin.run, dict(origin.config)) == (None, {})
    else:
        assert origin.run is not None
        assert origin.run.resolve() == run
        assert origin.finished is finished
        assert origin.config["dataset"] == "torch/cifar10"
    # overrides, the same for all of them
    backbone, _ = open_model(place.format(run=run), num_classes=0, img_size=64, **overrides)
    assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 48)
    three = [open_model(place.format(run=run), num_classes=3, **overrides)[0] for _ in range(2)]
    assert torch.equal(three[0](IMAGES), three[1](IMAGES))
    assert three[0](IMAGES).shape == (2, 3)


def test_a_name_with_and_without_its_tag_is_the_bundled_model() -> None:
    name = "aot_admm_tiny.lejepa_cifar10"
    models = [open_model(source) for source in (name, "aot_admm_tiny")]
    assert [origin.name for _, origin in models] == [name, name]
    assert torch.equal(models[0][0](IMAGES), models[1][0](IMAGES))
    untrained, origin = open_model("aot_admm_tiny", random_init=True)
    assert not torch.equal(untrained(IMAGES), models[0][0](IMAGES))
    assert origin.name == "aot_admm_tiny"


def test_a_convolutional_network_has_no_use_for_an_image_size(tmp_path: Path) -> None:
    timm.models.save_for_hf(timm.create_model("test_resnet", num_classes=4), tmp_path, safe_serialization=True)
    model, _ = open_model(tmp_path, img_size=48)
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 4)
    with pytest.raises(UserError, match="nonsense"):  # which is another matter
        open_model(tmp_path, img_size=48, model_kwargs={"nonsense": 1})


def write(folder: Path, kind: str) -> str:
    """A source that must be refused; returns what it is called."""
    path = folder / f"{kind}.pth"
    state = timm.create_model("test_vit", num_classes=0).state_dict()
    contents: dict[str, Any] = {
        "state": {"state": 5},
        "method": {"state": {"method": 5, "ema": {"module.a": 1}}},
        "numbers": {"epoch": 3},
        "list": [1, 2],
        "keys": {7: 8},
        "foreign": {"foo": torch.zeros(3)},
        "prefix": {**{f"model.{key}": value for key, value in state.items()}, "head.weight": torch.zeros(4, 64)},
        "beside": {"state_dict": state, "head.weight": torch.zeros(4, 64)},
        "half": dict(list(state.items())[:5]),
    }
    if kind in contents:
        torch.save(contents[kind], path)
    elif kind == "cut":
        torch.save(state, path)
        path.write_bytes(path.read_bytes()[:-300])
    elif kind == "text":
        path.write_text("no weights")
    elif kind == "tensors":
        path = folder / "cut.safetensors"
        save_file(state, path)
        path.write_bytes(path.read_bytes()[:-30])
    elif kind == "empty":
        path = folder / "folder"
        path.mkdir()
    elif kind == "unfinished":
        path = folder / "unfinished"
        (path / "checkpoints").mkdir(parents=True)
    elif kind in ("config", "missing layer", "no weights", "foreign architecture"):
        path = folder / "model"
        timm.models.save_for_hf(timm.create_model("test_vit", num_classes=4), path, safe_serialization=True)
        if kind == "config":
            (path / "config.json").write_text('{"architecture": ')
        elif kind == "foreign architecture":
            (path / "config.json").write_text(json.dumps({"architecture": "resnet_of_somebody"}))
        elif kind == "no weights":
            (path / "model.safetensors").unlink()
        else:
            state = load_file(path / "model.safetensors")
            save_file({k: v for k, v in state.items() if "blocks.1.mlp" not in k}, path / "model.safetensors")
    else:
        return kind
    return str(path)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("state", DamagedFile, "there are no tensors in state .int."),
        ("method", DamagedFile, "there are no tensors"),
        ("numbers", DamagedFile, "there are no tensors in epoch"),
        ("list", DamagedFile, "no state dict but list"),
        ("keys", DamagedFile, "there are no tensors"),
        ("foreign", WeightsMismatch, "does not fit test_vit"),
        ("half", WeightsMismatch, "does not fit test_vit: .*Missing key"),
        ("prefix", WeightsMismatch, "only some names of the state dict start with 'model.', head.weight not"),
        ("beside", WeightsMismatch, "both in 'state_dict' and beside it .head.weight."),
        ("cut", DamagedFile, "refused: not a checkpoint of tensors and plain data"),
        ("text", DamagedFile, "refused: not a checkpoint of tensors and plain data"),
        ("tensors", DamagedFile, "not a readable safetensors file"),
        ("config", DamagedFile, "not a readable config.json"),
        ("empty", ModelNotFound, "neither a run .* nor a model folder"),
        ("unfinished", ModelNotFound, "has not finished"),
        ("foreign architecture", ModelNotFound, "'resnet_of_somebody' is not registered"),
        ("no weights", ModelNotFound, "a model folder without weights"),
        ("missing layer", WeightsMismatch, "blocks.1.mlp"),
        ("no/such/place.pth", ModelNotFound, "no such run, model folder, file of weights or timm name"),
        ("test_vit.no_such_tag", ModelNotFound, "no weights of that name"),
        ("hf-hub:org/na me", ModelNotFound, "na me"),
        ("hf-hub:org/name", Unreachable, "hf-hub:org/name"),
        ("s3:bucket/name", ModelNotFound, "s3:bucket/name"),
    ],
)
def test_refusals_by_kind(kind: str, error: type[UserError], message: str, tmp_path: Path) -> None:
    source = write(tmp_path, kind)
    for overrides in ({}, {"num_classes": 0}, {"img_size": 48}):
        model = "test_vit" if source.endswith((".pth", ".safetensors")) else None
        with pytest.raises(error, match=message) as caught:
            open_model(source, model=model, **overrides)
        assert type(caught.value) is error
        assert source.removeprefix("local-dir:") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_arguments_that_a_model_refuses_are_no_fault_of_its_weights(run: Path) -> None:
    for arguments, words in (({"num_heads": 7}, "num_heads=7"), ({"nonsense": 1}, "nonsense")):
        with pytest.raises(UserError, match=words) as caught:
            open_model(run, model_kwargs=arguments)
        assert type(caught.value) is UserError
    with pytest.raises(WeightsMismatch, match="the weights are of aot_admm_tiny, not of crate_tiny"):
        open_model(run, model="crate_tiny")
    with pytest.raises(WeightsMismatch, match="has no place"):
        open_model(run, model_kwargs={"depth": 1})


def test_a_name_of_a_hub_that_refuses_the_connection_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A registered model whose weights lie on the Hub: offline, no copy in the cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Unreachable, match=r"test_vit.*"):
        open_model("test_vit.r160_in1k")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """A Hub that this process talks to, with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_snapshot, "_SILENCE", 0.5)
    with LoopbackHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_hub_that_never_answers_is_unreachable_but_what_is_in_the_cache_opens(run: Path, hub: LoopbackHub) -> None:
    files = {file.name: File(file.read_bytes(), large=False) for file in (run / "encoder").iterdir()}
    hub.repositories["org/name"] = Repository(private=False)
    commit = hub.repositories["org/name"].commit("main", files)
    hub.faults.silent = {"resolve"}
    began = time.monotonic()
    with pytest.raises(Unreachable, match="hf-hub:org/name: "):
        open_model("hf-hub:org/name")
    assert time.monotonic() - began < 5
    hub.faults.silent.clear()
    model, origin = open_model("hf-hub:org/name", num_classes=0)
    assert torch.equal(model(IMAGES), open_model(run, num_classes=0)[0](IMAGES))
    assert origin.revision == commit
    hub.faults.silent = {"resolve"}
    assert torch.equal(open_model("hf-hub:org/name", num_classes=0)[0](IMAGES), model(IMAGES))
    hub.faults.silent.clear()
    with pytest.raises(ModelNotFound, match="hf-hub:org/other"):
        open_model("hf-hub:org/other")
