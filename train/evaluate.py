"""What a pretrained encoder is worth: kNN, linear and few-label probes, retrieval, rank, views, layers, transfer.

    python train/evaluate.py RUN                                       on the data set it was trained on
    python train/evaluate.py RUN_OR_MODEL --dataset torch/cifar100     any data set
    python train/evaluate.py RUN --report                              and one HTML page: RUN/report.html
    python train/evaluate.py RUN --transfer --dataset-download         eight data sets and their mean
    torchrun --nproc_per_node=2 train/evaluate.py RUN                  the same numbers, features shared out

Features are frozen. Every choice (the probe's penalty) is made inside train; test is read once. On two cores the
digits take half a minute; the probes of 50,000 features of width 384 take about ten seconds each.
"""

from aotadmm_timm.cli import parse, run
from aotadmm_timm.options import EvaluateConfig


def main() -> None:
    cfg = parse(EvaluateConfig, description=__doc__, positional=("run_or_model",))
    from aotadmm_timm.evaluation.protocol import (
        evaluate,  # not before: it imports torch, and --help should answer at once
    )

    evaluate(cfg)


if __name__ == "__main__":
    run(main)
