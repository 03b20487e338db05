"""Make a finished run's encoder one of the package's bundled weights: half precision, with its card.

    python hub/bundle.py RUN aot_admm_tiny.lejepa_cifar10 --uses "Features of small photographs; ..."

Writes aotadmm_timm/weights/NAME.safetensors, found by timm through the name's pretrained cfg, and hub/cards/NAME/ with
README.md and the loss figure. The scores on the card are those of the rounded weights (beside the run's baselines), so
`python train/evaluate.py NAME --dataset DATASET` gives the same numbers.
"""

from dataclasses import dataclass
from pathlib import Path

from aotadmm_timm.cli import option, parse, run

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Config:
    source: str = option(None, "run folder")
    name: str = option(None, "registered model and tag, as in aot_admm_tiny.lejepa_cifar10")
    uses: str | None = option(None, "a paragraph for the card: what the model is good for, and what not")
    dataset: str | None = option(None, "where the run's data set lies now, if elsewhere")
    data_dir: str | None = option(None, "folder of torch/ data sets, cache of hfds/ ones")
    weights: str = option(str(ROOT / "aotadmm_timm" / "weights"), "folder for the weights")
    cards: str = option(str(ROOT / "hub" / "cards"), "folder for the card's folder")


def main() -> None:
    cfg = parse(Config, description=__doc__, positional=("source", "name"))
    from aotadmm_timm.evaluation.scores import model_scores
    from aotadmm_timm.hub.bundling import bundle

    written = bundle(
        cfg.source,
        cfg.name,
        lambda train, test, encoder: model_scores(train, test, encoder, encoder),
        weights=Path(cfg.weights),
        cards=Path(cfg.cards),
        uses=cfg.uses,
        dataset=cfg.dataset,
        data_dir=cfg.data_dir,
    )
    print(*written, sep="\n")


if __name__ == "__main__":
    run(main)
