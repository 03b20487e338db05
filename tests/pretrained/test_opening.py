"""Models by name, folder or Hub id; configurations and weights that strangers wrote are checked first."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aotadmm_timm.pretrained import open_model, state_digest

MakeRun = Callable[..., Path]


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "encoder" / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(config))


def test_a_run_folder_and_its_encoder_folder_are_the_same_model(make_run: MakeRun) -> None:
    run = make_run(num_classes=7)
    model, origin = open_model(str(run), num_classes=0)
    again, same = open_model(f"local-dir:{run / 'encoder'}", num_classes=0)
    assert origin == same
    assert origin.architecture == "aot_admm_tiny"
    assert not model.training
    assert torch.equal(model(torch.zeros(1, 3, 32, 32)), again(torch.zeros(1, 3, 32, 32)))
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, model.num_features)  # the classifier is left out


def test_a_folder_that_is_called_like_a_model_does_not_hide_it(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("crate_tiny")
    monkeypatch.chdir(tmp_path)
    assert open_model("crate_tiny", random_init=True, num_classes=0)[1].architecture == "crate_tiny"
    assert open_model("./crate_tiny", num_classes=0)[1].architecture == "aot_admm_tiny"


def test_the_digest_sees_every_bit_and_every_name() -> None:
    state = {"a": torch.zeros(3), "b": torch.ones(2, dtype=torch.bfloat16)}
    assert state_digest(state) == state_digest(dict(reversed(state.items())))
    assert state_digest(state) != state_digest({**state, "a": torch.tensor([0.0, 0.0, 1e-30])})
    assert state_digest(state) != state_digest({"c": state["a"], "b": state["b"]})


def test_unknown_names_and_missing_weights_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'aot_admm_tinny' \(nearest known: aot_admm_tiny\)"):
        open_model("aot_admm_tinny", num_classes=0)
    with pytest.raises(ValueError, match=r"no weights of that name; --random-init .* hf-hub:ORG/NAME in its place"):
        open_model("vit_tiny_mlpfree", num_classes=0)
    with pytest.raises(ValueError, match="hf-hub:org/name"):
        open_model("org/name", num_classes=0)
    assert open_model("vit_tiny_mlpfree", random_init=True, num_classes=0)[1].name == "vit_tiny_mlpfree"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "resnet_of_somebody"}, "architecture 'resnet_of_somebody' is not registered"),
        ({"architecture": ["os.system"]}, "is not registered"),
        ({"model_args": {"embed_dim": 10**9}}, "embed_dim = 1000000000 is out of range"),
        ({"model_args": {"depth": 10**6}}, "depth = 1000000 is out of range"),
        ({"model_args": {"img_size": [10**5, 10**5]}}, "img_size"),
        ({"model_args": {"embed_dim": 6144}}, "config.json describes"),
        ({"model_args": {"depth": 100}}, "config.json describes"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path is refused"),
        (
            {"model_args": {"pretrained": True, "pretrained_cfg": {"url": "http://127.0.0.1:9/x"}}},
            "pretrained is refused",
        ),
        ({"model_args": {"pretrained_cfg_overlay": {"file": "x"}}}, "pretrained_cfg_overlay is refused"),
        ({"model_args": {"inner": [{"cache_dir": "/etc"}]}}, "cache_dir is refused"),
        ({"model_args": {"features_only": True}}, "features_only is refused"),
        ({"model_args": {"scriptable": True}}, "scriptable is refused"),
        ({"pretrained_cfg": {"file": "/etc/passwd"}}, "file is refused"),
        ({"pretrained_cfg": {"url": "http://127.0.0.1/x.pth"}}, "url is refused"),
        ({"pretrained_cfg": {"hf_hub_filename": "../../x.bin"}}, "not a plain file name"),
        ({"pretrained_cfg": {"input_size": [3, 10**6, 10**6]}}, "input_size"),
        ({"model_args": {"unknown_option": 1}}, "unknown_option"),
    ],
)
def test_a_hostile_configuration_is_refused(changes: dict[str, Any], message: str, make_run: MakeRun) -> None:
    run = make_run()
    edit_config(run, **changes)
    with pytest.raises(ValueError, match=message):
        open_model(str(run), num_classes=0)


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran-the-code",)


def test_a_model_folder_with_a_hostile_pickle_is_refused(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run()
    (run / "encoder" / "model.safetensors").unlink()
    torch.save({"state_dict": _Hostile()}, run / "encoder" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="encoder"):
        open_model(str(run), num_classes=0)
    assert not (tmp_path / "ran-the-code").exists()


def test_damaged_weights_are_named(make_run: MakeRun) -> None:
    run = make_run()
    weights = run / "encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a readable safetensors file"):
        open_model(str(run), num_classes=0)
