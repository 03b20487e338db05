"""Options that trainings with labels share."""

from dataclasses import dataclass

from aotadmm_timm.cli import option
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import TrainConfig


@dataclass(frozen=True)
class SupervisedConfig(TrainConfig):
    """Options that trainings with labels share."""

    img_size: int | None = option(None, "side of the images; the model's own if not given", unit="pixels")
    num_classes: int | None = option(None, "outputs of the classifier; as many as the data set has if not given")
    crop_scale: tuple[float, float] = option((0.4, 1.0), "area range of random crops", unit="share")
    hflip: float | None = option(None, "probability of a mirror image; 0.5, for digits 0")
    color_jitter: float = option(0.2, "strength of brightness, contrast and saturation changes; 0 for none")
    mixup: float = option(0.0, "alpha of mixup; 0 for none")
    cutmix: float = option(0.0, "alpha of cutmix; 0 for none")
    smoothing: float = option(0.1, "label smoothing")
    drop_path: float | None = option(None, "stochastic depth rate; the one stored with the weights if not given")
    lr: float = option(5e-4, "peak learning rate")
    epochs: int = option(50, "passes over the training images")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, flag in (("img_size", "--img-size"), ("num_classes", "--num-classes")):
            if key in self.model_kwargs:
                raise UserError(f"--model-kwargs {key}={self.model_kwargs[key]}: {flag} sets it")
        if self.mixes and self.batch_size % 2:
            raise UserError(f"--batch-size {self.batch_size}: mixup and cutmix pair images, it must be even")

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0
