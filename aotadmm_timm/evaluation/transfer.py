"""Frozen features on many data sets, with the mean over those that can be had."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm import distributed
from aotadmm_timm.data import Images, only_readable
from aotadmm_timm.evaluation.knn import knn_accuracy
from aotadmm_timm.evaluation.linear_probe import linear_probe
from aotadmm_timm.evaluation.scores import both_features
from aotadmm_timm.evaluation.subject import Subject
from aotadmm_timm.evaluation.summary import align, to_json
from aotadmm_timm.evaluation.transfer_datasets import load_transfer
from aotadmm_timm.runs.environment import describe
from aotadmm_timm.runs.folder import write_text


def transfer(
    subject: Subject,
    names: Sequence[str],
    folder: Path,
    *,
    root: str | None = None,
    download: bool = False,
    batch_size: int = 256,
    num_workers: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Linear probe and kNN on each data set; prints a table with the mean and writes `transfer.json`.

    A data set that cannot be had is named with the reason, and left out of the mean.
    Returns: what the file holds (on rank 0, elsewhere an empty mapping).
    """
    features, left_out = {}, {}
    for name in names:
        parts, reason = _open(name, root, download)
        if parts is None:
            left_out[name] = reason
        else:
            features[name] = both_features(*parts, subject.model, subject.model, num_workers, batch_size)
    if not distributed.is_main():
        return {}
    rows = {
        name: {
            "linear": linear_probe(*train, *test, seed=seed),
            "knn20": knn_accuracy(*train, *test),
            "train_images": len(train[0]),
            "test_images": len(test[0]),
        }
        for name, (train, test) in features.items()
    }
    mean = {key: sum(row[key] for row in rows.values()) / len(rows) for key in ("linear", "knn20")} if rows else {}
    result = {
        "model": subject.name,
        "datasets": rows,
        "mean": mean,
        "left_out": left_out,
        "processes": distributed.world_size(),
        "environment": describe(next(subject.model.parameters(), torch.empty(0)).device),
    }
    write_text(folder / "transfer.json", to_json(result))
    _print_table(rows, mean, left_out)
    print(f"results: {folder / 'transfer.json'}")
    return result


def _print_table(rows: dict[str, dict[str, float]], mean: dict[str, float], left_out: dict[str, str]) -> None:
    table = [["data set", "linear", "kNN k=20", "train", "test"]]
    for name, row in rows.items():
        counts = [str(row["train_images"]), str(row["test_images"])]
        table.append([name, f"{100 * row['linear']:.2f}", f"{100 * row['knn20']:.2f}", *counts])
    if rows:
        table.append([f"mean of {len(rows)}", f"{100 * mean['linear']:.2f}", f"{100 * mean['knn20']:.2f}", "", ""])
    print(align(table))
    for name, reason in left_out.items():
        print(f"left out: {reason if name in reason else f'{name}: {reason}'}")


def _open(name: str, root: str | None, download: bool) -> tuple[tuple[Images, Images] | None, str]:
    """Train and test, or the reason why not. All processes agree, and rank 0 alone downloads."""

    def attempt(download: bool) -> tuple[tuple[Images, Images] | None, str]:
        try:
            train = load_transfer(name, "train", root=root, download=download)
            return (train, load_transfer(name, "test", root=root, download=download, classes=train.classes)), ""
        except (ValueError, OSError) as error:
            return None, " ".join(str(error).split())

    parts, reason = attempt(download) if distributed.is_main() else (None, "")
    distributed.barrier()
    if not distributed.is_main():
        parts, reason = attempt(False)
    reasons = [each for each in distributed.all_gather_objects(reason) if each]
    if parts is None or reasons:
        return None, reasons[0]
    return (only_readable(parts[0]), only_readable(parts[1])), ""
