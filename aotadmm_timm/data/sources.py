"""One function for each kind of data set name; see `datasets.load_images`."""

import logging
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .datasets import EVALUATION_SPLITS, LabelledImages, NoSuchSplit, from_files, from_pictures
from .decode import IMAGE_SUFFIXES, read_image

logger = logging.getLogger(__name__)


def _choose_split(name: str, split: str, available: Sequence[str]) -> str:
    """`split` itself, or for an evaluation split any of its synonyms that exists."""
    candidates = (split, *EVALUATION_SPLITS) if split in EVALUATION_SPLITS else (split,)
    for candidate in candidates:
        if candidate in available:
            return candidate
    raise NoSuchSplit(f"{name}: no split {split!r}; it has {', '.join(map(str, available)) or 'none'}")


def digits(split: str) -> LabelledImages:
    """scikit-learn's 8x8 digits, enlarged to 32x32; a fifth of each class is test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ModuleNotFoundError("data set 'digits' needs scikit-learn: pip install 'aotadmm_timm[train]'") from None
    from .datasets import held_out_split

    _choose_split("digits", split, ("train", "test"))
    bunch = load_digits()
    train, test = held_out_split(bunch.target, fraction=0.2, seed=0)
    rows = train if split == "train" else test
    pixels = np.round(bunch.images[rows] * (255 / 16)).astype(np.uint8)
    return from_pictures(
        "digits",
        split,
        lambda row: Image.fromarray(pixels[row]).resize((32, 32), Image.Resampling.BILINEAR),
        bunch.target[rows],
        [str(d) for d in range(10)],
    )


def torchvision(name: str, split: str, *, root: str | Path | None, download: bool) -> LabelledImages:
    """A torchvision data set through timm's factory."""
    from timm.data import create_dataset

    root = Path(root) if root else Path.home() / ".cache" / "torchvision"
    try:
        data: Any = create_dataset(
            name, root=str(root), split="validation" if split in EVALUATION_SPLITS else split, download=download
        )
    except AssertionError as err:
        raise ValueError(f"{name}: {err}") from None
    except RuntimeError as err:  # torchvision: not found or corrupted; or a failed download
        hint = "" if download else "; --dataset-download fetches it, --data-dir names another folder"
        raise FileNotFoundError(f"{name}: not found under {root}{hint} ({err})") from None
    except OSError as err:
        raise FileNotFoundError(f"{name}: could not be downloaded to {root}: {err}") from None
    labels = data.targets if hasattr(data, "targets") else [data[i][1] for i in range(len(data))]
    classes = getattr(data, "classes", None) or [str(c) for c in range(int(max(labels)) + 1)]
    return from_pictures(name, split, lambda row: data[row][0], [int(x) for x in labels], classes)


def hugging_face(
    name: str,
    location: str,
    split: str,
    *,
    root: str | Path | None,
    input_key: str | None,
    target_key: str | None,
    need_labels: bool = True,
) -> LabelledImages:
    """A Hugging Face data set with an image column and a class column.

    An evaluation split without any label (-1 or null, as of a challenge's test) is passed over for the next synonym,
    if labels are needed.
    """
    if not location:
        raise ValueError(f"{name}: which data set? hfds/ID or hfds/PATH")
    try:
        import datasets
    except ImportError:
        raise ModuleNotFoundError(f"{name}: needs datasets: pip install 'aotadmm_timm[train]'") from None

    location = os.path.expanduser(location)
    if location.startswith((".", "/")) and not os.path.isdir(location):
        raise FileNotFoundError(f"{name}: no folder {location!r}")
    datasets.disable_progress_bars()
    try:
        splits = datasets.load_dataset(location, cache_dir=str(root) if root else None)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as err:
        raise FileNotFoundError(f"{name}: cannot be loaded: {err}") from None
    unlabelled: list[str] = []
    while True:
        chosen = _choose_split(name, split, [each for each in splits if each not in unlabelled])
        data, image_key, label_key, labels = _labelled(name, splits[chosen], input_key, target_key, need_labels)
        if not need_labels or split not in EVALUATION_SPLITS or not len(labels) or (labels != -1).any():
            break
        logger.warning("%s: split %r has no labels, another one is taken for it", name, chosen)
        unlabelled.append(chosen)
    column = None if label_key is None else data.features[label_key]
    names = getattr(column, "names", None) or [str(c) for c in range(int(labels.max(initial=-1)) + 1)]
    lowest = 0 if need_labels else -1
    if len(labels) and (labels.min() < lowest or labels.max() >= len(names)):
        bad = next(int(c) for c in labels if not lowest <= c < len(names))
        raise ValueError(
            f"{name}: split {chosen!r} has the label {bad} in {label_key!r}, classes are 0..{len(names) - 1}"
        )
    raw = data.cast_column(image_key, datasets.Image(decode=False))

    def read(row: int) -> Image.Image:
        item = raw[row][image_key]
        source = item["bytes"] if item["bytes"] is not None else item["path"]
        return read_image(source, name=f"{name} {chosen}[{row}]")

    return LabelledImages(name, chosen, tuple(names), labels, read, np.arange(len(labels)))


def _labelled(
    name: str, data: Any, input_key: str | None, target_key: str | None, need_labels: bool
) -> tuple[Any, str, str | None, np.ndarray]:
    """A split, its image column, its label column if any, and the labels as int64, -1 for none."""
    import datasets

    features = data.features
    image_key = _column(
        name, "input_key", input_key, features, [k for k, f in features.items() if isinstance(f, datasets.Image)]
    )
    of_classes = [k for k, f in features.items() if isinstance(f, datasets.ClassLabel)]
    if not need_labels and target_key is None and not of_classes:
        return data, image_key, None, np.full(len(data), -1, np.int64)
    label_key = _column(name, "target_key", target_key, features, of_classes, preferred=("label", "fine_label"))
    try:
        labels = np.asarray([-1 if label is None else label for label in data[label_key]], np.int64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: column {label_key!r} (--target-key) does not hold class numbers") from None
    return data, image_key, label_key, labels


def _column(
    name: str, option: str, given: str | None, features: Any, candidates: list[str], preferred: Sequence[str] = ()
) -> str:
    """The column that was asked for, else the only candidate, else (said aloud) a conventional name among several."""
    flag = "--" + option.replace("_", "-")
    if given is not None:
        if given not in features:
            raise ValueError(f"{name}: no column {given!r} ({flag}); it has {', '.join(features)}")
        return given
    if len(candidates) == 1:
        return candidates[0]
    for key in preferred:
        if key in candidates:
            others = ", ".join(c for c in candidates if c != key)
            logger.warning("%s: labels are column %r; %s chooses another (%s)", name, key, flag, others)
            return key
    what = f"several columns fit ({', '.join(candidates)})" if candidates else f"none of {', '.join(features)} fits"
    raise ValueError(f"{name}: {what}; name one with {flag}")


def _split_folder(root: Path, split: str) -> Path:
    """The sub-folder of a split; the folder itself if it has no split folders."""
    names = [p.name for p in root.iterdir() if p.is_dir()]
    if any(n in ("train", *EVALUATION_SPLITS) for n in names):
        return root / _choose_split(str(root), split, names)
    if split in EVALUATION_SPLITS:
        raise NoSuchSplit(f"{root}: no split {split!r}; expected sub-folders train/ and val/ (or test/)")
    return root


def folder(name: str, split: str, *, classes: Sequence[str] | None) -> LabelledImages:
    """One sub-folder per class, searched recursively for image files. An empty class keeps its number."""
    root = _split_folder(Path(name), split)
    found = sorted(p.name for p in root.iterdir() if p.is_dir())
    if not found:
        raise ValueError(f"{root}: no class folders in it")
    if classes is not None and (unknown := sorted(set(found) - set(classes))):
        raise ValueError(f"{root}: class {unknown[0]!r} is not among the classes of train ({', '.join(classes)})")
    order = list(classes) if classes is not None else found
    paths, labels = [], []
    for label, each in enumerate(order):
        files = sorted(p for p in (root / each).rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        if not files:
            logger.warning("%s: class %r has no images", root, each)
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise ValueError(f"{root}: no image files ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return from_files(name, split, paths, labels, order)


def shards(
    name: str, location: str, split: str, *, classes: Sequence[str] | None, need_labels: bool = True
) -> LabelledImages:
    """Local WebDataset shards, indexed once for random access.

    A sample is an image member and a `.cls` member (the class number) that share a key: the path up to the first dot
    of the file name. Class names are the lines of `classes.txt` beside the shards, or the numbers. The split of a shard
    is its folder, or a whole word of its name.
    """
    root = Path(os.path.expanduser(location))
    if not root.is_dir():
        raise FileNotFoundError(f"{name}: no folder {location!r} (remote shards: download them first)")
    inner = [p.name for p in root.iterdir() if p.is_dir()]
    if any(n in ("train", *EVALUATION_SPLITS) for n in inner):
        tars = sorted((root / _choose_split(name, split, inner)).glob("*.tar"))
    else:
        words = {p: re.split(r"[^A-Za-z]+", p.stem) for p in root.glob("*.tar")}  # "latest" is not of test
        splits = [s for s in ("train", *EVALUATION_SPLITS) if any(s in each for each in words.values())]
        chosen = _choose_split(name, split, splits)
        tars = sorted(p for p, each in words.items() if chosen in each)
    places: list[tuple[Path, int, int]] = []
    labels: list[int] = []
    ids: list[str] = []
    for tar in tars:
        images: dict[str, tuple[Path, int, int]] = {}
        numbers: dict[str, int] = {}
        try:
            with tarfile.open(tar) as archive:
                for member in archive:
                    inside, _, file = member.name.rpartition("/")
                    stem, _, suffix = file.partition(".")
                    key = f"{inside}/{stem}" if inside else stem
                    if "." + suffix.lower() in IMAGE_SUFFIXES:
                        images[key] = (tar, member.offset_data, member.size)
                    elif suffix == "cls" and (content := archive.extractfile(member)) is not None:
                        numbers[key] = int(content.read())
        except (tarfile.TarError, ValueError) as err:
            raise ValueError(f"{tar}: {err}") from None
        if need_labels and (missing := sorted(images.keys() - numbers.keys())):
            raise ValueError(f"{tar}: no .cls member for {missing[0]!r}")
        for key in sorted(images):
            places.append(images[key])
            labels.append(numbers.get(key, -1))
            ids.append(f"{tar}/{key}")
    if not places:
        raise ValueError(f"{name}: no images in its shards of split {split!r}")
    listing = root / "classes.txt"
    names = listing.read_text(encoding="utf-8").split("\n") if listing.is_file() else []
    order = [n for n in names if n] or list(classes or [str(c) for c in range(max(labels) + 1)])
    if min(labels) < (0 if need_labels else -1) or max(labels) >= len(order):
        bad = next(label for label in (min(labels), max(labels)) if not 0 <= label < len(order))
        raise ValueError(f"{name}: label {bad} but classes are 0..{len(order) - 1}")

    def read(row: int) -> Image.Image:
        tar, offset, size = places[row]
        with open(tar, "rb") as file:
            file.seek(offset)
            return read_image(file.read(size), name=ids[row])

    return LabelledImages(name, split, tuple(order), np.asarray(labels, np.int64), read, np.arange(len(labels)), ids)
