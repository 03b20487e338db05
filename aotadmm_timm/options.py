"""Options that trainings share, the checks on them, and what a run's config.yaml holds beside them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from aotadmm_timm.cli import flag_of, keys, option
from aotadmm_timm.cli.option import Fact
from aotadmm_timm.errors import UserError

# What feature extraction offers; said here, where no import of torch is needed to show it.
DEFAULT_MODEL = "aot_admm_tiny"
POOLS = ("token", "avg", "none")


@dataclass(frozen=True)
class Derived:
    """What config.yaml says beside the options. It follows from them, so the file can be given as --config."""

    method: str = option("", "what was trained: a method's name, finetune or distill")
    convention: dict[str, Any] = option({}, "what the loss is, as the method says it", resumable=True, repeats=True)
    architecture: str = option("", "timm name of the model without its tag", resumable=True, repeats=True)
    model_args: dict[str, Any] = option({}, "what the model was made with", resumable=True, repeats=True)
    pretrained_cfg: dict[str, Any] = option({}, "image preparation", resumable=True, repeats=True, published=False)
    classes: tuple[str, ...] = option((), "names of the classes, a long list", repeats=True, published=False)
    train_images: int = option(0, "images trained on; metrics.json says so, too", repeats=True, published=False)
    world: int = option(1, "processes")


@dataclass(frozen=True)
class DataConfig:
    """Which images: what trainings and evaluations share."""

    dataset: str | None = option(None, "digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder with train/ and val/")
    data_dir: str | None = option(None, "folder of torch/ data sets, cache of hfds/ ones", place=True)
    dataset_download: bool = option(False, "download torch/ data sets that are missing", machine=True)
    input_key: str | None = option(None, "image column of an hfds/ data set; inferred if there is one")
    target_key: str | None = option(None, "label column of an hfds/ data set; inferred if there is one")
    num_samples: int | None = option(None, "use N training images only, drawn by the run's seed", unit="images")
    max_pixels: int | None = option(
        None, "largest image that is decoded; Pillow's limit of 89 million if not given", unit="pixels"
    )
    sample_range: tuple[float, float] | None = option(
        None, "black and white of floating-point and 32-bit images; found in each file if not given"
    )
    import_: str | None = option(
        None, "Python file or module to import first (registers your own models)", machine=True
    )
    num_workers: int = option(0, "loader processes", machine=True)
    device: str | None = option(None, "cpu, cuda, cuda:1; the GPU if there is one", machine=True)

    def __post_init__(self) -> None:
        require_positive(self, "num_samples", "max_pixels")
        require_not_negative(self, "num_workers")


def require_positive(cfg: Any, *names: str) -> None:
    """Raises UserError naming the flag of the first of these options that is given and below 1."""
    for name in names:
        if (value := getattr(cfg, name)) is not None and value < 1:
            raise UserError(f"{flag_of(name)} must be positive, got {value}")


def require_not_negative(cfg: Any, *names: str) -> None:
    """Raises UserError naming the flag of the first of these options that is below 0."""
    for name in names:
        if (value := getattr(cfg, name)) < 0:
            raise UserError(f"{flag_of(name)} must not be negative, got {value}")


_OF_THE_LOOP = ("seed", "accumulate", "clip_grad", "save_every", "log_every", "stop_after")


@dataclass(frozen=True)
class TrainConfig(DataConfig):
    """Data, model, optimizer, run. A training's own configuration adds to it."""

    derived: ClassVar[type] = Derived

    dataset: str = option("digits", "digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder with train/ and val/")
    model: str | None = option("aot_admm_nano", "timm model name")
    model_kwargs: dict[str, Any] = option({}, "constructor arguments of the model: key=value, lists as key=[2,2,6,2]")
    num_workers: int = option(2, "loader processes for images that are not kept in memory", machine=True)
    epochs: int = option(100, "passes over the training images")
    batch_size: int = option(128, "images per step and process")
    accumulate: int = option(1, "batches per optimizer step; the losses see one batch at a time")
    opt: str = option("adamw", "timm optimizer name")
    opt_kwargs: dict[str, Any] = option({}, "arguments of the optimizer, as key=value")
    lr: float = option(1e-3, "peak learning rate")
    min_lr: float | None = option(None, "learning rate at the end of the cosine; a thousandth of --lr if not given")
    warmup_epochs: float | None = option(
        None, "linear warm-up; a tenth of the run, at most 10, if not given", unit="epochs"
    )
    weight_decay: float = option(
        0.05, "weight decay, decoupled with adamw (not on norms, biases, tokens, positions, thresholds)"
    )
    clip_grad: float | None = option(None, "clip the gradient norm to this")
    ema: float | None = option(None, "keep an exponential moving average of the weights with this decay, and export it")
    seed: int = option(0, "seed of everything random", repeats=True)
    amp: str = option(
        "auto", "mixed precision: auto is bf16 where the hardware has it", choices=("auto", "off", "bf16")
    )
    compile: bool = option(
        False,
        "compile the model with torch.compile (for GPUs; this package's models gain nothing on CPU)",
        resumable=True,
    )
    output: str | None = option(None, "run folder; below runs/, named after what is trained, if not given", place=True)
    resume: str | None = option(None, "auto, or a checkpoint or run folder to continue from", place=True)
    save_every: int = option(1, "epochs between checkpoints", unit="epochs", resumable=True, repeats=True)
    log_every: int = option(10, "steps averaged into a row of the log", unit="steps", repeats=True)
    stop_after: int | None = option(
        None,
        "stop after this many epochs of the schedule of --epochs",
        unit="epochs",
        resumable=True,
        repeats=True,
    )
    wandb: str | None = option(None, "also log to this Weights & Biases project", machine=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "epochs", "batch_size", "accumulate", "log_every", "stop_after")
        require_not_negative(self, "save_every", "weight_decay")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed must be at least 0 and below 2**31, got {self.seed}")
        if self.lr <= 0:
            raise UserError(f"--lr must be positive, got {self.lr}")
        if self.min_lr is not None and not 0 <= self.min_lr <= self.lr:
            raise UserError(f"--min-lr {self.min_lr} must lie between 0 and --lr {self.lr}: a cosine falls")
        if self.warmup_epochs is not None and not 0 <= self.warmup_epochs < self.epochs:
            raise UserError(f"--warmup-epochs {self.warmup_epochs} must be less than --epochs {self.epochs}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"--ema {self.ema} must lie between 0 and 1")
        if self.clip_grad is not None and self.clip_grad <= 0:
            raise UserError(f"--clip-grad {self.clip_grad} must be positive")

    def loop_options(self) -> dict[str, Any]:
        """The options that `Loop` takes as they are."""
        return {key: getattr(self, key) for key in _OF_THE_LOOP}


@dataclass(frozen=True)
class EvaluateConfig(DataConfig):
    """Options of an evaluation."""

    run_or_model: str | None = option(None, "run folder, model folder, timm model name or hf-hub:ORG/NAME")
    dataset: str | None = option(None, "data set, as for training; a run's own if not given")
    random_init: bool = option(False, "evaluate a registered model untrained")
    baseline: bool = option(True, "score the same architecture untrained as well")
    views: int = option(8, "augmented views per image for cosines and thickness; 0 leaves them out")
    view_images: int = option(2000, "training images that are augmented", unit="images")
    layer_images: int = option(128, "test images for the layer-wise curves; 0 leaves them out", unit="images")
    transfer: bool = option(False, "score the transfer data sets instead of --dataset")
    transfer_datasets: tuple[str, ...] | None = option(
        None, "data sets of --transfer; if not given, the eight of lambda-JEPA's Appendix C.1, from CIFAR-10 to Pets"
    )
    report: bool = option(False, "write report.html, one page that needs no other file")
    batch_size: int = option(256, "images per forward pass")
    seed: int = option(0, "seed of the augmented views, and of the probes of --transfer")
    output: str | None = option(None, "folder for results; RUN/evaluation or evaluations/MODEL if not given")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "batch_size")
        if self.views == 1 or self.views < 0:
            raise UserError(f"--views must be 0 or at least 2, got {self.views}")
        for key in ("dataset", "input_key", "target_key", "num_samples", "report") if self.transfer else ():
            if getattr(self, key):
                raise UserError(f"{flag_of(key)} is of no use with --transfer, which scores its own data sets")


def known(fact: Fact, *, holds: bool = True) -> frozenset[str]:
    """The keys of a run's config.yaml of which a fact holds, or does not; a method's own options are not among them."""
    return keys(TrainConfig, fact, holds=holds) | keys(Derived, fact, holds=holds)
