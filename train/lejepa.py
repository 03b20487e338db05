"""LeJEPA pretraining of any timm backbone: views of an image agree, embeddings are driven to an isotropic Gaussian.

    python train/lejepa.py                                                    digits, about 3 minutes on two cores
    python train/lejepa.py --config train/recipes/cifar10_tiny.yaml --dataset torch/cifar10 --dataset-download
    torchrun --nproc_per_node=8 train/lejepa.py --config ...                  --batch-size is per process

The default run trains AoT-ADMM Nano on the 1,438 training digits of scikit-learn and ends with a table of frozen
features' scores on the 359 test digits. Everything a run leaves lies in its folder: open curves.png first.
"""

from dataclasses import dataclass

from torch import nn

from aotadmm_timm.cli import option, parse, run
from aotadmm_timm.engine.pretrain import PretrainConfig, pretrain
from aotadmm_timm.losses import build_regularizer, needs_normalize
from aotadmm_timm.methods.lejepa import LeJEPA


@dataclass(frozen=True)
class Config(PretrainConfig):
    # The defaults of these three are the digits recipe: some 1,900 steps in three minutes. On the held-out tenth of
    # train, rates of 2e-3 to 6e-3 are equal within noise, and the lowest keeps the most rank. train/recipes has others.
    epochs: int = option(64, "passes over the training images")
    batch_size: int = option(48, "images per step and process")
    lr: float = option(2e-3, "peak learning rate; 5e-4 in the paper's CIFAR and ImageNet recipes")
    lamb: float = option(0.05, "weight of SIGReg: (1 - lamb) inv + lamb SIGReg in the convex form")
    form: str = option("convex", "convex, or sum: inv + lamb SIGReg (AoT-ADMM Eq. 19)", choices=("convex", "sum"))
    target: str = option("global", "views whose mean the embeddings should equal", choices=("global", "all"))
    pool_views: bool = option(False, "one Gaussianity test over all views together instead of one per view")
    projector: tuple[int, ...] | None = option(
        (512, 512, 64), "widths of the projector: hidden layers, then embedding; none to train on the features"
    )
    num_slices: int = option(256, "random directions per step, of SIGReg and of all that is tested along directions")
    directions: str = option("iid", "how they are drawn", choices=("iid", "orthogonal", "sobol"))
    regularizer: str | None = option(
        None,
        "in place of SIGReg, arguments in parentheses: coding-rate (implies --normalize), 'moments(order=6)', ... (any "
        "unknown name lists them), or MODULE:FUNCTION, f(z, step), z (V, B, D)",
    )
    normalize: bool = option(False, "centre embeddings and fix their energy, the conditions of AoT-ADMM's Theorem 1")
    backbone_sacreg: float = option(0.0, "weight of SACReg on the backbone's view centres (lambda-JEPA, section 3.3)")
    backbone_sigreg: float = option(0.0, "weight of SIGReg on the same centres, the control to it")
    backbone_slice_dim: int | None = option(None, "width of SACReg's slices; a third of the features if not given")
    backbone_buffer: int = option(3, "past batches among SACReg's centres: keep 4 slice widths", unit="batches")
    tap: str = option(
        "norm", "backbone features that these two see: normalised, or as they are (if signed)",
        choices=("norm", "features"),
    )  # fmt: skip


def main() -> None:
    cfg = parse(Config, description=__doc__)

    regularizer = cfg.regularizer or "sigreg"
    normalize = cfg.normalize or needs_normalize(regularizer)
    term = build_regularizer(
        regularizer,
        num_slices=cfg.num_slices,
        seed=cfg.seed,
        directions=cfg.directions,
        normalize=normalize,
    )

    def build(backbone: nn.Module) -> LeJEPA:
        return LeJEPA(
            backbone,
            lamb=cfg.lamb,
            form=cfg.form,  # type: ignore[arg-type]
            target=cfg.target,  # type: ignore[arg-type]
            pool_views=cfg.pool_views,
            projector_dims=cfg.projector or (),
            num_slices=cfg.num_slices,
            regularizer=term,
            normalize=normalize,
            backbone_sacreg=cfg.backbone_sacreg,
            backbone_sigreg=cfg.backbone_sigreg,
            backbone_slice_dim=cfg.backbone_slice_dim,
            backbone_buffer=cfg.backbone_buffer,
            tap=cfg.tap,  # type: ignore[arg-type]
            seed=cfg.seed,
        )

    pretrain(cfg, "lejepa", build)


if __name__ == "__main__":
    run(main)
