"""Options from defaults, YAML and flags; refusals name what is wrong and what is near."""

import dataclasses
import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from aotadmm_timm.cli import as_dict, build, keys, option, parse, read_yaml, run
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import Derived, TrainConfig


@dataclass(frozen=True)
class Config:
    lr: float = option(5e-4, "peak rate")
    epochs: int = option(10, "passes over the data", unit="epochs")
    name: str = option("a", "one of two", choices=("a", "b"))
    scale: tuple[float, float] = option((0.3, 1.0), "two numbers", unit="share")
    widths: tuple[int, ...] = option((64, 32), "any number of numbers")
    extra: dict[str, Any] = option({}, "constructor arguments")
    limit: int | None = option(None, "at most", unit="images")
    flip: bool = option(True, "mirror")
    import_: str | None = option(None, "module")


def write(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_defaults_then_yaml_then_flags(tmp_path: Path) -> None:
    recipe = write(tmp_path, "lr: 1e-3\nepochs: 5\nscale: [0.1, 0.2]\nimport: json\n")
    cfg = parse(Config, ["--config", recipe, "--epochs", "7", "--widths", "8", "4", "2"])
    assert cfg == Config(lr=1e-3, epochs=7, scale=(0.1, 0.2), widths=(8, 4, 2), import_="json")
    assert parse(Config, []) == Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.lr = 1.0  # type: ignore[misc]


def test_numbers_that_yaml_1_1_reads_as_text(tmp_path: Path) -> None:
    # `5e-4` and `1e3` have no dot: to YAML 1.1 they are strings
    assert yaml.safe_load("5e-4") == "5e-4"
    cfg = parse(Config, ["--config", write(tmp_path, "lr: 5e-4\nepochs: 1e3\n")])
    assert (cfg.lr, cfg.epochs, type(cfg.epochs)) == (5e-4, 1000, int)


@pytest.mark.parametrize(
    "words", [["depths=[2,2,6,2]", "tie=no"], ["depths=[2,2,6,2],tie=no"], ["depths=[2,", "2,", "6,", "2]", "tie=no"]]
)
def test_a_mapping_from_flags(words: list[str]) -> None:
    assert parse(Config, ["--extra", *words]).extra == {"depths": [2, 2, 6, 2], "tie": False}


def test_a_mapping_from_yaml(tmp_path: Path) -> None:
    assert parse(Config, ["--config", write(tmp_path, "extra: {depth: 3, tie: true}\n")]).extra == {
        "depth": 3,
        "tie": True,
    }


def test_a_default_mapping_is_not_shared() -> None:
    parse(Config, []).extra["depth"] = 1
    assert parse(Config, []).extra == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epoch", "3"], r"unknown argument --epoch \(nearest known: --epochs\)"),
        (["--epochs=3", "--lrr=1"], r"unknown argument --lrr=1 \(nearest known: --lr\)"),
        (["--epochs", "many"], r"--epochs: expected int, got 'many'"),
        (["--epochs", "inf"], r"--epochs: expected int, got 'inf'"),
        (["--lr", "nan"], r"--lr: expected float, got 'nan'"),
        (["--scale", "0", "inf"], r"--scale: expected float, got 'inf'"),
        (["--epochs", "2.5"], r"--epochs: expected int, got '2.5'"),
        (["--scale", "1"], r"--scale: expected tuple.*got '1'"),
        (["--name", "c"], r"--name: expected one of a, b, got 'c'"),
        (["--extra", "depth"], r"--extra: expected key=value pairs.*got 'depth'"),
        (["--lr", "none"], r"--lr: expected float, got 'none'"),
        (["--lr"], r"--lr: expected one argument"),
        (["--config", "missing.yaml"], r"--config missing.yaml: No such file"),
    ],
)
def test_refused_flags(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(Config, flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epcohs: 3\n", r"recipe.yaml: unknown key 'epcohs' \(nearest known: epochs\)"),
        ("lr: [1]\n", r"recipe.yaml: lr: expected float, got \[1\]"),
        ("lr: .inf\n", r"recipe.yaml: lr: expected float, got inf"),
        ("epochs: .inf\n", r"recipe.yaml: epochs: expected int, got inf"),
        ("lr: true\n", r"recipe.yaml: lr: expected float, got True"),
        ("flip: maybe\n", r"recipe.yaml: flip: expected bool, got 'maybe'"),
        ("name: c\n", r"recipe.yaml: name: expected one of a, b"),
        ("epochs:\n", r"recipe.yaml: epochs: needs a value"),
        ("- lr\n", r"recipe.yaml: expected `key: value` lines, got a list"),
        ("lr: [\n", r"recipe.yaml: not valid YAML"),
    ],
)
def test_refused_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(Config, ["--config", write(tmp_path, text)])


def test_large_integers_are_exact(tmp_path: Path) -> None:
    large = 2**60 + 1
    assert parse(Config, ["--epochs", str(large)]).epochs == large
    assert parse(Config, ["--config", write(tmp_path, f"epochs: {large}\n")]).epochs == large


def test_a_binary_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"\x80\x02\xff")
    with pytest.raises(UserError, match=r"last\.pt: not a text file"):
        parse(Config, ["--config", str(tmp_path / "last.pt")])


def test_the_configuration_of_a_run_can_be_given_again(tmp_path: Path) -> None:
    derived = dict.fromkeys(keys(Derived), "follows from the options")
    recipe = write(tmp_path, yaml.safe_dump({**as_dict(TrainConfig(lr=0.5)), **derived}))
    assert parse(TrainConfig, ["--config", recipe]) == TrainConfig(lr=0.5)


def test_a_recipe_is_judged_with_the_flags_that_change_it(tmp_path: Path) -> None:
    recipe = write(tmp_path, "epochs: 5\nwarmup_epochs: 10\n")
    assert parse(TrainConfig, ["--config", recipe, "--epochs", "20"]).warmup_epochs == 10
    with pytest.raises(UserError, match=r"--warmup-epochs 10\.0 must be less than --epochs 5"):
        parse(TrainConfig, ["--config", recipe])


def test_none_and_negated_flags() -> None:
    cfg = parse(Config, ["--limit", "none", "--no-flip"])
    assert (cfg.limit, cfg.flip) == (None, False)


def test_as_dict_survives_yaml_and_comes_back() -> None:
    cfg = Config(scale=(0.1, 0.5), extra={"depth": 2}, import_="json")
    plain = yaml.safe_load(yaml.safe_dump(as_dict(cfg)))
    assert plain["import"] == "json"
    assert build(Config, plain) == cfg


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# nothing\n")) == {}


@dataclass(frozen=True)
class Positional:
    runs: tuple[str, ...] | None = option(None, "run folders")
    output: str = option("table.csv", "file")


def test_positional_options() -> None:
    assert parse(Positional, ["a b", "c"], positional=("runs",)) == Positional(runs=("a b", "c"))
    with pytest.raises(UserError, match="runs"):
        parse(Positional, [], positional=("runs",))


def test_help_explains_every_option_with_unit_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(TrainConfig, ["--help"], description="what it does")
    words = " ".join(capsys.readouterr().out.split())
    assert "what it does" in words
    assert "--config" in words
    for field in dataclasses.fields(TrainConfig):
        assert "--" + field.name.rstrip("_").replace("_", "-") + " " in words
        assert " ".join(field.metadata["help"].split()) in words
        if field.metadata["unit"]:
            assert f"[{field.metadata['unit']}]" in words
    assert words.count("(default: ") == len(dataclasses.fields(TrainConfig))


DISK_FULL = "error: [Errno 28] No space left on device: 'run/log.jsonl'\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("--lr must be\npositive"), 2, "error: --lr must be positive\n"),
        (OSError(errno.ENOSPC, "No space left on device", "run/log.jsonl"), 2, DISK_FULL),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_run_turns_bad_input_into_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as stopped:
        run(main)
    assert stopped.value.code == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("fault", [RuntimeError, ValueError, KeyError, FileNotFoundError, ModuleNotFoundError])
def test_run_shows_faults_of_the_program_itself(fault: type[Exception]) -> None:
    def main() -> None:
        raise fault("a bug")

    with pytest.raises(fault, match="a bug"):
        run(main)
