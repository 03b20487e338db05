"""lambda-JEPA pretraining: views of an image agree, view centers keep full rank in projector and backbone.

    python train/lambda_jepa.py                                     digits, about 3 minutes on two cores
    python train/lambda_jepa.py --calibrate 100                     loss weights by gradient share, printed and stored
    torchrun --nproc_per_node=2 train/lambda_jepa.py --config RECIPE --dataset PATH     --batch-size is per process

The default weights are the paper's for a ViT-S on ImageNet-100 with four views (lambda-JEPA, Appendix C.2). They hold
for that backbone, views and buffers; for others `--calibrate` finds them after a pilot of about an epoch. The run goes
on with them; to start a new one with them, as the paper does, pass them as flags. RECIPE: train/recipes/lambda_jepa_*.
"""

import logging

from aotadmm_timm.cli import run
from aotadmm_timm.engine.pretrain_script import MethodScript

# The paper has no local views. Its rate of 1e-3 is for a ViT with 10 epochs of warm-up.
SCRIPT = MethodScript(
    "lambda_jepa", num_global=4, num_local=0, lr=3e-4, clip_grad=1.0, projector=(512, 512, 64)
)  # fmt: skip
Config = SCRIPT.Config


def main() -> None:
    logging.getLogger("aotadmm_timm.methods").setLevel(logging.INFO)  # calibrated weights are news
    SCRIPT.main(__doc__)


if __name__ == "__main__":
    run(main)
