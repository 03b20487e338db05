"""Options of every pretraining; a method adds those of its constructor."""

from dataclasses import dataclass

from aotadmm_timm.cli import option
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import TrainConfig


@dataclass(frozen=True)
class PretrainConfig(TrainConfig):
    """Options that every pretraining shares."""

    model: str = option("aot_admm_nano", "timm model name of the backbone")
    initial_checkpoint: str | None = option(
        None, "what the backbone starts from: run, model folder or name; a narrower model of its family is widened"
    )
    small_image_stem: bool = option(False, "convolutional networks: first convolution 3x3 with stride 1, no max-pool")
    views: str = option(
        "auto", "augmentation: natural images, digits (no flips, no colour), auto by data set",
        choices=("auto", "natural", "digits"),
    )  # fmt: skip
    img_size: int | None = option(
        None,
        "side of the images that the model is built for and evaluated at; --global-size if not given",
        unit="pixels",
    )
    num_global: int | None = option(None, "global views per image; by --views")
    num_local: int | None = option(None, "local views per image; by --views")
    global_size: int | None = option(None, "side of a global view; by --views", unit="pixels")
    local_size: int | None = option(None, "side of a local view; by --views", unit="pixels")
    global_scale: tuple[float, float] | None = option(None, "area range of global crops; by --views", unit="share")
    local_scale: tuple[float, float] | None = option(None, "area range of local crops; by --views", unit="share")
    probe_every: int | None = option(
        None, "epochs between offline kNN probes; about 10 in a run if not given", unit="epochs"
    )
    evaluate: bool = option(True, "end with the table of frozen-feature scores")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise UserError("--batch-size 1: BatchNorm and the batch statistics of the loss need at least two images")
        if self.img_size is not None and self.img_size < 1:
            raise UserError(f"--img-size must be positive, got {self.img_size}")
        if self.probe_every is not None and self.probe_every < 1:
            raise UserError(f"--probe-every must be positive, got {self.probe_every}")


# `views` and what it sets where they are not given
VIEW_OPTIONS = ("views", "num_global", "num_local", "global_size", "local_size", "global_scale", "local_scale")
