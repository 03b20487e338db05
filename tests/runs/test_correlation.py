"""Rank correlations of numbers at the end of a run with accuracy."""

from aotadmm_timm.runs.correlation import rank_correlations
from aotadmm_timm.runs.records import Record


def record(accuracy: float, *, loss: float, lamb: float, rankme: float = 1.0, **row: float) -> Record:
    scores = {"knn20": accuracy, "linear": 1 - accuracy, "rankme": rankme}
    first, last = {"epoch": 0, "loss": 100 * accuracy}, {"epoch": 1, "loss": loss, **row}
    return Record("r", "", {"lamb": lamb}, {"pretrained": scores}, [first, last])


def test_each_number_against_each_accuracy() -> None:
    runs = [
        record(0.1, loss=3.0, lamb=1.0, inv=0.3, rankme=9.0),
        record(0.2, loss=2.0, lamb=1.0, inv=0.1, rankme=5.0),
        record(0.3, loss=2.5, lamb=0.01, rankme=7.0),
        record(0.4, loss=1.0, lamb=1.0, inv=0.2, rankme=2.0, sigreg=1.0),
    ]
    header, *rows = rank_correlations(runs)
    assert header == ["at the end of the run", "n", "with kNN", "with linear"]
    # By hand, 1 - 6 sum d^2 / (n (n^2 - 1)); the third loss over 0.01 ** 0.4 is 15.8, the largest.
    assert rows == [
        ["loss", "4", "-0.80", "+0.80"],
        ["loss / lamb^0.4", "4", "-0.40", "+0.40"],
        ["invariance", "3", "-0.50", "+0.50"],
        ["RankMe", "4", "-0.80", "+0.80"],
    ]
