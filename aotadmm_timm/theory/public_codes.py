"""What public codes of LeJEPA and its relatives compute, choice by choice, and where each choice was read.

Choices only: the loss that they make is in `restated`, the lambda that one of them is worth in another in
`conventions`. Of published code the formulas and numbers are carried over; several of these repositories are for
non-commercial use.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from aotadmm_timm.errors import UserError, nearest


class Quadrature(NamedTuple):
    """Equally spaced knots of the trapezoidal rule from `low` to `high`; a half line from 0 counts twice (even)."""

    knots: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.knots} knots, [{self.low:g}, {self.high:g}]{'' if self.low else ' doubled'}"


@dataclass(frozen=True)
class Convention:
    """The choices of one code. The defaults are this package's, so that a code's entry lists what it does differently.

    Fields, in the order in which a loss is made:
        form: "convex": (1 - lamb) inv + lamb reg; "sum": inv + lamb reg; "weights": three weights, no lambda. target:
        what the embeddings should equal: the mean of the "global" views, of "all" views, or each other ("pairs").
        predicted: the views whose distance to the target counts. target_gradient: whether the target carries gradient.
        dims: whether squared distances are a mean or a sum over dimensions. statistic: "Epps-Pulley" and "VISReg" test
        embeddings, "SACReg" is a function of mean and covariance. tested: the views that are regularized; "centers" are
        means over the views of an image. pooling: one test for each view and their average, or one on the rows of all
        views together. count: whether the statistic is multiplied by its number of rows. quadrature: of Epps-Pulley's
        integral. slices: random directions in a step. They change the noise, not the expectation. processes: with
        several processes, one test of all rows with their gradient ("joint"), a test of each process's
            rows ("alone"), or that times the number of processes ("alone, scaled").
        unstated: fields that the source leaves open; they hold our reading of it.
    """

    name: str
    read: str  # repository, file and commit, or paper and equation
    published: str = ""  # values of lambda that it gives
    form: Literal["convex", "sum", "weights"] = "convex"
    target: Literal["global", "all", "pairs"] = "global"
    predicted: Literal["all", "local"] = "all"
    target_gradient: bool = True
    dims: Literal["mean", "sum"] = "mean"
    statistic: Literal["Epps-Pulley", "VISReg", "SACReg"] = "Epps-Pulley"
    tested: Literal["all", "local", "centers"] = "all"
    pooling: Literal["per view", "pooled"] = "per view"
    count: bool = True
    quadrature: Quadrature | None = Quadrature(17, 0, 3)
    slices: int = 256
    processes: Literal["joint", "alone", "alone, scaled"] = "joint"
    unstated: tuple[str, ...] = ()


OURS = Convention("aotadmm_timm", "train/lejepa.py and aotadmm_timm/methods/lejepa.py", "0.05")

CONVENTIONS = {
    convention.name: convention
    for convention in (
        OURS,
        Convention(
            "lejepa-paper",
            "arXiv:2511.08544v3, Algorithms 1 and 2",
            "0.05; 17 knots on [-5, 5] and 1,024 slices advised",
            quadrature=Quadrature(17, -5, 5),
        ),
        Convention(
            "lejepa-equation",
            "arXiv:2511.08544v3, Eqs. 7 and 9; the integral as in its Algorithm 1",
            "0.05",
            dims="sum",
            quadrature=Quadrature(17, -5, 5),
        ),
        Convention(
            "lejepa-minimal",
            "rbalestr-lab/lejepa, MINIMAL.md, 2f2d970",
            "0.02, with 4 views, 16 dimensions, batch 256",
            target="all",
            processes="alone",
        ),
        Convention(
            "lejepa-library",
            "rbalestr-lab/lejepa, lejepa/univariate/epps_pulley.py and lejepa/multivariate/slicing.py, a74fcb9; "
            "per view by issue 45; the loss around them is the caller's, here the paper's",
            "none; its adapter takes 512 slices, its README 1,024",
            slices=1024,
        ),
        Convention(
            "stable-pretraining",
            "galilai-group/stable-pretraining, stable_pretraining/methods/lejepa.py, 00d82e8 "
            "(rbalestr-lab's copy of it at 7e0f75c is the same)",
            "0.02",
            form="sum",
            pooling="pooled",
            slices=1024,
            processes="alone, scaled",  # the result of its all-reduce is not used
        ),
        Convention(
            "lightly",
            "lightly-ai/lightly, pull request 2023 (merged August 2026) on lightly/loss/lejepa_loss.py, 0b282af",
            "0.05",
            slices=1024,
            processes="alone",  # gather_distributed=False by default; True makes it joint
        ),
        Convention(
            "lightly-local",
            "lightly-ai/lightly, lightly/loss/lejepa_loss.py, 0b282af: before pull request 2023",
            "0.05",
            predicted="local",
            tested="local",
            slices=1024,
            processes="alone",
        ),
        Convention(
            "eb_jepa",
            "facebookresearch/eb_jepa, examples/image_jepa/main.py and cfgs/default.yaml, bad1c59; BCS in "
            "eb_jepa/losses.py as in the copy epokhcs/eb_jepa, 72132c8",
            "10, with 2 views, batch 256; 1 and 100 lose 4 and 10 points of CIFAR-10",
            form="sum",
            target="pairs",
            count=False,
            quadrature=Quadrature(10, -3, 3),
        ),
        Convention(
            "visreg",
            "HaiyuWu/visreg, train.py, 2441709, and visreg/losses/visreg.py, 06f65b1",
            "0.9 (ViT-B), 0.8 (ViT-L): its terms have no factor N",
            statistic="VISReg",
            count=False,
            quadrature=None,
            slices=4096,
        ),
        Convention(
            "lambda-jepa",
            "berkerdemirel/lambda-jepa, sslgap/methods/lambdajepa.py and video/levjepa/lambdajepa_reg.py, 58cb678",
            "weights 32.8, 157.8 and 1.894 (ImageNet-100) of invariance, projector and backbone",
            form="weights",
            target="pairs",
            statistic="SACReg",
            tested="centers",
            pooling="pooled",
            count=False,
            quadrature=None,
            slices=128,
        ),
        Convention(
            "aot-admm",
            "AoT-ADMM, Eq. 19 and Algorithm 1, its SIGReg as in Eq. A.2",
            "none: alpha is not given",
            form="sum",
            count=False,
            unstated=("dims", "pooling", "quadrature", "slices", "processes"),
        ),
    )
}


def find(name: str) -> Convention:
    """The convention of that name. Raises: UserError that lists the names and the nearest."""
    if name not in CONVENTIONS:
        raise UserError(f"no convention {name!r}{nearest(name, list(CONVENTIONS))}: known are {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]
