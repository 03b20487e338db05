"""LeJEPA pretraining of any timm backbone: views of an image agree, embeddings are driven to an isotropic Gaussian.

    python train/lejepa.py                                                    digits, about 3 minutes on two cores
    python train/lejepa.py --config train/recipes/cifar10_tiny.yaml --dataset torch/cifar10 --dataset-download
    torchrun --nproc_per_node=8 train/lejepa.py --config ...                  --batch-size is per process

The default run trains AoT-ADMM Nano on the 1,438 training digits of scikit-learn and ends with a table of frozen
features' scores on the 359 test digits. Everything a run leaves lies in its folder: open curves.png first.
"""

from aotadmm_timm.cli import run
from aotadmm_timm.engine.pretrain_script import MethodScript

# The digits recipe: some 1,900 steps in three minutes. On the held-out tenth of train, rates of 2e-3 to 6e-3 are equal
# within noise, and the lowest keeps the most rank. train/recipes has others.
SCRIPT = MethodScript("lejepa", epochs=64, batch_size=48, lr=2e-3, projector=(512, 512, 64))
Config = SCRIPT.Config


def main() -> None:
    SCRIPT.main(__doc__)


if __name__ == "__main__":
    run(main)
