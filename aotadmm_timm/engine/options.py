"""Options that every training shares, and the checks on them."""

from dataclasses import dataclass
from typing import Any

from aotadmm_timm.cli import option
from aotadmm_timm.errors import UserError

# Options that do not change what a step computes or what is logged: they may differ when a run is resumed.
FREE = {
    "output", "resume", "stop_after", "num_workers", "device", "data_dir", "dataset_download", "save_every", "compile",
    "evaluate", "wandb", "import",
}  # fmt: skip


_OF_THE_LOOP = ("seed", "accumulate", "clip_grad", "save_every", "log_every", "stop_after")


@dataclass(frozen=True)
class TrainConfig:
    """Model, data, optimizer, run. A training's own configuration adds to it."""

    model: str | None = option("aot_admm_nano", "timm model name")
    model_kwargs: dict[str, Any] = option({}, "constructor arguments of the model, as key=value")
    import_: str | None = option(None, "Python file or module to import first (registers your own models)")
    dataset: str = option("digits", "digits, torch/NAME, hfds/ID_OR_PATH, wds/PATH or a folder with train/ and val/")
    data_dir: str | None = option(None, "folder of torch/ data sets, cache of hfds/ ones")
    dataset_download: bool = option(False, "download a torch/ data set that is missing")
    input_key: str | None = option(None, "image column of an hfds/ data set; inferred if there is one")
    target_key: str | None = option(None, "label column of an hfds/ data set; inferred if there is one")
    num_samples: int | None = option(None, "use the first N training images only", unit="images")
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
    seed: int = option(0, "seed of everything random")
    amp: str = option(
        "auto", "mixed precision: auto is bf16 where the hardware has it", choices=("auto", "off", "bf16")
    )
    compile: bool = option(
        False, "compile the model with torch.compile (for GPUs; this package's models gain nothing on CPU)"
    )
    device: str | None = option(None, "cpu, cuda, cuda:1; the GPU if there is one")
    num_workers: int = option(2, "loader processes for images that are not kept in memory")
    output: str | None = option(None, "run folder; below runs/, named after what is trained, if not given")
    resume: str | None = option(None, "auto, or a checkpoint or run folder to continue from")
    save_every: int = option(1, "epochs between checkpoints", unit="epochs")
    log_every: int = option(10, "steps averaged into a row of the log", unit="steps")
    stop_after: int | None = option(None, "stop after this many epochs of the schedule of --epochs", unit="epochs")
    wandb: str | None = option(None, "also log to this Weights & Biases project")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "log_every", "num_samples", "stop_after"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be positive, got {value}")
        for name in ("save_every", "num_workers", "weight_decay"):
            if (value := getattr(self, name)) < 0:
                raise UserError(f"--{name.replace('_', '-')} must not be negative, got {value}")
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
