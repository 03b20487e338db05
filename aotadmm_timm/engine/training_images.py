"""The images of a training and the views it makes of them, from its options."""

from typing import Any

from aotadmm_timm.data import Images, load_images
from aotadmm_timm.data.multicrop import MultiCrop, default_crop
from aotadmm_timm.data.photometric import Photometric
from aotadmm_timm.errors import UserError
from aotadmm_timm.options import TrainConfig

from .pretrain_options import VIEW_OPTIONS, PretrainConfig
from .supervised_options import SupervisedConfig


def load_split(cfg: TrainConfig, split: str, classes: tuple[str, ...] | None = None, *, labels: bool = True) -> Images:
    """A split of the configured data set; `num_samples` shortens train only. See `load_images` for `labels`."""
    return load_images(
        cfg.dataset,
        split,
        root=cfg.data_dir,
        download=cfg.dataset_download,
        input_key=cfg.input_key,
        target_key=cfg.target_key,
        num_samples=cfg.num_samples if split == "train" else None,
        seed=cfg.seed,
        classes=classes,
        labels=labels,
        max_pixels=cfg.max_pixels,
        sample_range=cfg.sample_range,
    )


def multi_crop(cfg: PretrainConfig) -> MultiCrop:
    """The views of a configuration."""
    given = {k: getattr(cfg, k) for k in VIEW_OPTIONS[1:] if getattr(cfg, k) is not None}
    crop = default_crop(cfg.views, cfg.dataset).replace(seed=cfg.seed, **given)
    if unused := [key for key in ("local_size", "local_scale") if key in given and not crop.num_local]:
        flag = f"--{unused[0].replace('_', '-')}"
        raise UserError(f"{flag} {given[unused[0]]}: there are no local views (--num-local); {flag} none unsets it")
    return crop


def training_view(cfg: SupervisedConfig, model: Any, size: int) -> MultiCrop:
    """One random crop of `size` pixels per image, normalized for the model."""
    digits = cfg.dataset == "digits"
    jitter = (cfg.color_jitter, cfg.color_jitter, 0.0 if digits else cfg.color_jitter, 0.0)
    return default_crop("auto", cfg.dataset).replace(
        num_global=1,
        num_local=0,
        global_size=size,
        global_scale=cfg.crop_scale,
        hflip=(0.0 if digits else 0.5) if cfg.hflip is None else cfg.hflip,
        photometric=Photometric(jitter=jitter, gray_prob=0.0, blur_prob=0.0, solarize_prob=0.0),
        mean=model.pretrained_cfg["mean"],
        std=model.pretrained_cfg["std"],
        seed=cfg.seed,
    )
