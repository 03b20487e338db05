"""Frozen features on many data sets, with the mean over those that can be had."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aotadmm_timm import distributed
from aotadmm_timm.data import Images, eval_loader, only_readable
from aotadmm_timm.evaluation import extract_features, knn_accuracy, linear_probe
from aotadmm_timm.evaluation.summary import align, to_json
from aotadmm_timm.evaluation.transfer import load_transfer
from aotadmm_timm.runs.environment import describe
from aotadmm_timm.runs.folder import write_text

from .subject import Subject


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
        if reason:
            left_out[name] = reason
            continue
        features[name] = [
            extract_features(
                subject.model, eval_loader(part, subject.model, batch_size=batch_size, num_workers=num_workers)
            )
            for part in parts
        ]
    if not distributed.is_main():
        distributed.barrier()
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
    table = [["data set", "linear", "kNN k=20", "train", "test"]]
    for name, row in rows.items():
        counts = [str(row["train_images"]), str(row["test_images"])]
        table.append([name, f"{100 * row['linear']:.2f}", f"{100 * row['knn20']:.2f}", *counts])
    if rows:
        table.append([f"mean of {len(rows)}", f"{100 * mean['linear']:.2f}", f"{100 * mean['knn20']:.2f}", "", ""])
    print(align(table))
    for name, reason in left_out.items():
        print(f"left out: {reason if name in reason else f'{name}: {reason}'}")
    print(f"results: {folder / 'transfer.json'}")
    distributed.barrier()
    return result


def _open(name: str, root: str | None, download: bool) -> tuple[list[Images], str]:
    """Train and test, or the reason why not. All processes agree, and rank 0 alone downloads."""

    def attempt(download: bool) -> tuple[list[Images], str]:
        try:
            train = load_transfer(name, "train", root=root, download=download)
            return [train, load_transfer(name, "test", root=root, download=download, classes=train.classes)], ""
        except (ValueError, OSError) as error:
            return [], " ".join(str(error).split())

    parts, reason = attempt(download) if distributed.is_main() else ([], "")
    distributed.barrier()
    if not distributed.is_main():
        parts, reason = attempt(False)
    reasons = [each for each in distributed.all_gather_objects(reason) if each]
    return ([], reasons[0]) if reasons else ([only_readable(part) for part in parts], "")
