"""What orders runs as their labels would: rank correlations of label-free numbers with accuracy, over runs."""

import math
from collections.abc import Callable, Sequence

from aotadmm_timm.runs.records import Record

# What stands at the end of a run without labels. The loss over lamb ** 0.4 is LeJEPA's (arXiv:2511.08544, section 6.2).
_QUANTITIES: dict[str, Callable[[Record], float | None]] = {
    "loss": lambda r: r.epochs[-1].get("loss"),
    "loss / lamb^0.4": lambda r: _ratio(r.epochs[-1].get("loss"), r.config.get("lamb")),
    "invariance": lambda r: r.epochs[-1].get("inv"),
    "SIGReg": lambda r: r.epochs[-1].get("sigreg"),
    "RankMe": lambda r: r.metrics["pretrained"].get("rankme"),
    "cosine": lambda r: r.metrics["pretrained"].get("cosine"),
}
_ACCURACIES = (("kNN", "knn20"), ("linear", "linear"))


def rank_correlations(records: Sequence[Record]) -> list[list[str]]:
    """Header and one row per label-free number: its Spearman correlation with each accuracy, and the number of runs.

    Losses are means over the last epoch, RankMe and cosine those of the features that the accuracies are of. A run
    that has no such number (SIGReg where another regularizer was trained) is left out of its row; a row of fewer than
    three runs, or of equal values, is left out.
    """
    from scipy.stats import spearmanr

    scored = [r for r in records if "pretrained" in r.metrics and r.epochs]
    rows = [["at the end of the run", "n", *(f"with {title}" for title, _ in _ACCURACIES)]]
    for name, quantity in _QUANTITIES.items():
        pairs = [(value, r) for r in scored if (value := quantity(r)) is not None and math.isfinite(value)]
        values = [value for value, _ in pairs]
        if len(pairs) < 3 or len(set(values)) == 1:
            continue
        cells = (spearmanr(values, [r.metrics["pretrained"][key] for _, r in pairs])[0] for _, key in _ACCURACIES)
        rows.append([name, str(len(pairs)), *(f"{cell:+.2f}" for cell in cells)])
    return rows


def _ratio(loss: float | None, lamb: float | None) -> float | None:
    return None if loss is None or not lamb else loss / lamb**0.4
