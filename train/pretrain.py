"""Pretraining of any timm backbone by any method, one of this package or your own.

    python train/pretrain.py --method lejepa                          as train/lejepa.py, with the method's own defaults
    python train/pretrain.py --method byol --backbone-sacreg 0.5      with SACReg on the backbone beside its loss
    python train/pretrain.py --method my_method.py:MyMethod           a class of yours, see README
    python train/pretrain.py --method my_method.py:MyMethod --help    its constructor's arguments are options

The default data are scikit-learn's digits. A run ends with a table of frozen features' scores.
"""

from dataclasses import dataclass

from aotadmm_timm.cli import option, peek, run
from aotadmm_timm.engine.method_names import METHODS
from aotadmm_timm.engine.pretrain_options import PretrainConfig
from aotadmm_timm.engine.pretrain_script import MethodScript


@dataclass(frozen=True)
class Config(PretrainConfig):
    method: str = option("lejepa", f"{', '.join(METHODS)}, or FILE.py:CLASS, a subclass of methods.Method")


def main() -> None:
    MethodScript(peek(Config, "method"), base=Config).main(__doc__)


if __name__ == "__main__":
    run(main)
