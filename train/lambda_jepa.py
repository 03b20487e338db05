"""lambda-JEPA pretraining: views of an image agree, view centres keep full rank in projector and backbone.

    python train/lambda_jepa.py                                     digits, about 3 minutes on two cores
    python train/lambda_jepa.py --calibrate 100                     loss weights by gradient share, printed and stored
    torchrun --nproc_per_node=2 train/lambda_jepa.py --config RECIPE --dataset PATH     --batch-size is per process

The default weights are the paper's for a ViT-S on ImageNet-100 with four views (lambda-JEPA, Appendix C.2). They hold
for that backbone, views and buffers; for others `--calibrate` finds them after a pilot of about an epoch. The run goes
on with them; to start a new one with them, as the paper does, pass them as flags. RECIPE: train/recipes/lambda_jepa_*.
"""

import logging
from dataclasses import dataclass

from torch import nn

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.engine.pretrain import PretrainConfig, pretrain
from aotadmm_timm.methods.lambda_jepa import LambdaJEPA


@dataclass(frozen=True)
class Config(PretrainConfig):
    num_global: int | None = option(4, "global views per image")
    num_local: int | None = option(0, "local views per image; the paper has none")
    lr: float = option(3e-4, "peak learning rate; the paper's 1e-3 is for a ViT with 10 epochs of warm-up")
    clip_grad: float | None = option(1.0, "clip the gradient norm to this")
    inv_weight: float = option(32.8, "weight of the invariance term")
    projector_sacreg: float = option(157.8, "weight of SACReg on the embeddings' view centres")
    backbone_sacreg: float = option(1.894, "weight of SACReg on the backbone's view centres")
    calibrate: int = option(
        0,
        "replace the three weights by gradient share .44 / .54 / .02 after a pilot this long; 0 keeps them",
        unit="steps",
    )
    target: str = option(
        "pairwise", "invariance between pairs of views, or to an EMA network's mean", choices=("pairwise", "ema")
    )
    tap: str = option(
        "norm", "backbone features that SACReg sees: normalised, or as they are (if signed)",
        choices=("norm", "features"),
    )  # fmt: skip
    projector: tuple[int, ...] = option((512, 512, 64), "widths of the projector: hidden layers, then embedding")
    projector_slice_dim: int | None = option(None, "width of SACReg's slices of the embedding; half of it if not given")
    backbone_slice_dim: int | None = option(None, "of the backbone's features; a third of them if not given")
    projector_buffer: int = option(3, "past batches among the embedding's centres: keep 4 slice widths", unit="batches")
    backbone_buffer: int = option(3, "past batches among the backbone's centres", unit="batches")


def main() -> None:
    cfg = parse(Config, description=__doc__)

    def build(backbone: nn.Module) -> LambdaJEPA:
        return LambdaJEPA(
            backbone,
            inv_weight=cfg.inv_weight,
            projector_sacreg=cfg.projector_sacreg,
            backbone_sacreg=cfg.backbone_sacreg,
            calibrate=cfg.calibrate,
            target=cfg.target,  # type: ignore[arg-type]
            tap=cfg.tap,  # type: ignore[arg-type]
            projector_dims=cfg.projector,
            projector_slice_dim=cfg.projector_slice_dim,
            backbone_slice_dim=cfg.backbone_slice_dim,
            projector_buffer=cfg.projector_buffer,
            backbone_buffer=cfg.backbone_buffer,
            seed=cfg.seed,
        )

    logging.getLogger("aotadmm_timm.methods").setLevel(logging.INFO)  # calibrated weights are news
    pretrain(cfg, "lambda_jepa", build)


if __name__ == "__main__":
    run(main)
