"""The short table at the end of a pretraining: kNN, linear probes, RankMe of a few sets of frozen features."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from aotadmm_timm.evaluation.knn import nearest_neighbors, vote_accuracy
from aotadmm_timm.evaluation.linear_probe import few_label_probe, linear_probe
from aotadmm_timm.evaluation.spectrum import different_image_cosine, rankme

_COLUMNS = (
    ("kNN k=20", "knn20"),
    ("kNN k=200", "knn200"),
    ("linear", "linear"),
    ("linear, 10 labels/class", "few_label_mean"),
    ("RankMe", "rankme"),
)


def frozen_scores(train_z: Tensor, train_y: Tensor, test_z: Tensor, test_y: Tensor) -> dict[str, float]:
    """Scores of frozen features (N, d) with labels (N,); accuracies are fractions.

    RankMe and the mean cosine of different images are of the test features.
    """
    mean, std = few_label_probe(train_z, train_y, test_z, test_y)
    similarity, index = nearest_neighbors(train_z, test_z, k=200)
    neighbor_y = train_y[index]
    return {
        "knn20": vote_accuracy(similarity[:, :20], neighbor_y[:, :20], test_y),
        "knn200": vote_accuracy(similarity, neighbor_y, test_y),
        "linear": linear_probe(train_z, train_y, test_z, test_y),
        "few_label_mean": mean,
        "few_label_std": std,
        "rankme": rankme(test_z),
        "cosine": different_image_cosine(test_z),
        "train_images": len(train_z),
        "test_images": len(test_z),
        "width": train_z.shape[1],
    }


def format_table(scores: Mapping[str, Mapping[str, float]], evaluated_on: str) -> str:
    """The scores as aligned text, one row per set of features."""
    any_row = next(iter(scores.values()))
    note = f"accuracy in per cent on {evaluated_on} (n = {any_row['test_images']:.0f}); RankMe over the same n"
    return f"{align(score_rows(scores))}\n{note}"


def score_rows(scores: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """`frozen_scores` by name as rows of text, the first one the header."""
    rows = [["features", *(title for title, _ in _COLUMNS)]]
    for name, score in scores.items():
        cells = [name]
        for _, key in _COLUMNS:
            value = score[key]
            if key == "rankme":
                cells.append(f"{value:.1f} of {score['width']:.0f}")
            elif key == "few_label_mean":
                cells.append(f"{100 * value:.1f} +- {100 * score['few_label_std']:.1f}")
            else:
                cells.append(f"{100 * value:.2f}")
        rows.append(cells)
    return rows


def to_json(result: Any) -> str:
    """Valid JSON: what is not a number becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(result), indent=1) + "\n"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
