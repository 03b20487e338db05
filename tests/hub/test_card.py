"""The card says what the run recorded, nothing else, and nothing about the author's machine."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from aotadmm_timm.hub.card import Run, model_card, read_run, scrub

MODEL = {"architecture": "aot_admm_tiny", "num_classes": 0, "pretrained_cfg": {"input_size": [3, 32, 32]}}
MakeRun = Callable[..., Path]


def card(run: Run, license: str | None = "apache-2.0") -> str:
    return model_card(run, name="hf-hub:org/name", model_config=MODEL, num_parameters=2_410_000, license=license)


def front_matter(text: str) -> dict[str, object]:
    return yaml.safe_load(text.split("---\n")[1])


def test_front_matter_is_that_of_a_self_supervised_timm_backbone(make_run: MakeRun) -> None:
    matter = front_matter(card(read_run(make_run())))
    assert matter["library_name"] == "timm"
    assert matter["pipeline_tag"] == "image-feature-extraction"
    assert matter["license"] == "apache-2.0"
    assert matter["datasets"] == ["uoft-cs/cifar10"]
    assert {"timm", "self-supervised-learning", "lejepa"} <= set(matter["tags"])


def test_every_recorded_result_recipe_convention_and_machine_is_stated(make_run: MakeRun) -> None:
    text = card(read_run(make_run()))
    assert "| | pretrained | untrained | pixels |" in text
    assert "| kNN, k = 20 | 81.23 % | 35.00 % | 33.00 % |" in text
    assert "| linear probe | 84.56 % | 42.00 % | - |" in text
    assert "| few-label probe | 61.00 % ± 2.10 | - | - |" in text
    assert "| RankMe | 57.30 of 384 | - | - |" in text
    assert "n = 10,000 images (test)" in text
    assert "at most 0.50 points" in text
    assert "One training run (seed 3)" in text
    assert "train_images" not in text
    for line in (
        "| epochs | 30 |",
        "| projector | 512, 64 |",
        "| model_args | depth=2 |",
        "| lamb | 0.05 |",
        "- form: convex",
        "- tap: pooled",
        "- hardware: Epyc",
    ):
        assert line in text
    assert "- commit: 0123abcd" in text
    assert "step 2, loss 0.333333" in text  # the last whole line of the log
    assert "](curves.png)" in text


def test_the_reader_is_told_how_to_install_load_and_what_a_missing_import_looks_like(make_run: MakeRun) -> None:
    text = card(read_run(make_run()))
    assert f'pip install "aotadmm_timm=={version("aotadmm_timm")}" "timm=={version("timm")}"' in text
    assert "import aotadmm_timm, timm" in text
    assert 'timm.create_model("hf-hub:org/name", pretrained=True)' in text
    assert "Unknown model (aot_admm_tiny)" in text


def test_nothing_of_the_authors_machine_and_no_token_reaches_the_card(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {
        "dataset": f"hfds/{tmp_path / 'data' / 'birds'}",
        "init": str(tmp_path / "w.pt"),
        "note": "hf_AbCdEf12345678",
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = card(read_run(run))
    assert config["output"] == str(run)  # which the record has
    assert str(tmp_path) not in text
    assert "hf_AbCdEf" not in text
    assert front_matter(text)["datasets"] == ["birds"]
    assert scrub("token=hf_AbCdEf12345678.") == "token=hf_***."


def test_a_run_that_recorded_nothing_gets_a_card_without_numbers(tmp_path: Path) -> None:
    text = card(read_run(tmp_path), license=None)
    assert "license" not in front_matter(text)
    assert "licence: not stated" in text
    assert "%" not in text
    assert "## Results" not in text
    assert "## Recipe" not in text


def test_odd_metrics_are_shown_as_they_are_or_left_out() -> None:
    metrics = {"mixed": {"knn20": 0.5, "note": "text"}, "list": [1, 2], "test": {"top1": 0.75, "loss": 3.25, "x": None}}
    text = card(Run(metrics=metrics))
    assert "| | test |" in text
    assert "| top1 | 75.00 % |" in text
    assert "| loss | 3.25 |" in text
    assert "| x | - |" in text


def test_a_model_of_timms_own_or_of_the_authors_is_loaded_its_own_way() -> None:
    config = {"architecture": "test_vit", "num_classes": 3}
    text = model_card(Run(), name="hf-hub:org/name", model_config=config, num_parameters=1, license=None)
    assert "\nimport timm\n" in text
    assert "aotadmm_timm" not in text
    assert "gives logits" in text
    assert front_matter(text)["pipeline_tag"] == "image-classification"


def test_a_damaged_record_is_named(make_run: MakeRun) -> None:
    run = make_run()
    (run / "metrics.json").write_text(json.dumps({"pretrained": {}})[:-3])
    with pytest.raises(ValueError, match=r"metrics\.json: cannot be read"):
        read_run(run)
