"""WebDataset shards on the local disk, indexed once for random access."""

import logging
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from aotadmm_timm.errors import UserError

from .decode import IMAGE_SUFFIXES, read_image
from .listing import few, text_of
from .samples import Images
from .splits import EVALUATION_SPLITS, choose_split

logger = logging.getLogger(__name__)

_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


class ShardImages(Images):
    """Members of tar files: row i is the `sizes[i]` bytes at `offsets[i]` of `tars[which[i]]`, its name `keys[i]`."""

    def __init__(self, name: str, split: str, classes: Sequence[str], shards: Sequence["Shard"]) -> None:
        samples = [(which, sample) for which, shard in enumerate(shards) for sample in shard.samples]
        super().__init__(name, split, [sample.label for _, sample in samples], classes)
        self.tars, self.keys = [str(shard.tar) for shard in shards], [sample.key for _, sample in samples]
        self.which = np.array([which for which, _ in samples], np.int64)
        self.offsets = np.array([sample.offset for _, sample in samples], np.int64)
        self.sizes = np.array([sample.size for _, sample in samples], np.int64)

    def read(self, row: int) -> Image.Image:
        with open(self.tars[self.which[row]], "rb") as file:
            file.seek(int(self.offsets[row]))
            encoded = file.read(int(self.sizes[row]))
        return read_image(encoded, name=self.row_id(row), decoding=self.decoding)

    def row_id(self, row: int) -> str:
        return text_of(f"{self.tars[self.which[row]]}/{self.keys[row]}")


@dataclass(frozen=True)
class Sample:
    """An image member of a shard, and the number in the label member beside it, -1 without one."""

    key: str
    offset: int
    size: int
    label: int


@dataclass
class Shard:
    """What a tar file holds: its samples by key, and what of it cannot be used, by kind."""

    tar: Path
    samples: list[Sample] = field(default_factory=list)
    unused: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, what: str, names: Iterable[str]) -> None:
        if names := sorted(names):
            self.unused[what] = names

    def keep(self, holds: Callable[[Sample], bool], what: str) -> None:
        """Leave the samples out for which `holds` is false."""
        self.drop(what, [sample.key for sample in self.samples if not holds(sample)])
        self.samples = [sample for sample in self.samples if holds(sample)]


def shards(
    name: str, location: str, split: str, *, classes: Sequence[str] | None, need_labels: bool = True
) -> ShardImages:
    """Open a folder of shards.

    A sample is an image member, and the `.cls` member (the class number) of the same name up to the *last* dot. As in
    WebDataset, what comes after the *first* dot is an extension where it can be one: `c.seg.png` beside `c.jpg` or
    `c.cls` is no image of its own. Where neither is there, or `c.seg.cls` is, that dot belongs to the name: to
    WebDataset `cat.1.jpg` and `cat.2.jpg` are one sample without a `jpg`, and both images are lost.

    Class names are the lines of `classes.txt` beside the shards, or the numbers. The split of a shard is its folder, or
    a whole word of its name; if no shard says so, all are of train.

    Whatever cannot be used is named in the log and counted, once for each shard.

    Raises: UserError if a key occurs twice in a shard, a label is no number, or a shard is damaged or compressed.
    """
    root = Path(os.path.expanduser(location))
    if not root.is_dir():
        raise UserError(f"{name}: no folder {location!r} (remote shards: download them first)")
    opened = [read_index(tar) for tar in _shards_of(name, root, split)]
    if need_labels and any(sample.label >= 0 for shard in opened for sample in shard.samples):
        for shard in opened:
            shard.keep(lambda sample: sample.label >= 0, "images without a label")
    for shard in opened:
        if shard.unused:
            what = "; ".join(f"{len(names):,} {kind}: {few(names)}" for kind, names in shard.unused.items())
            logger.warning("%s: left out %s", shard.tar, what)
    labels = [sample.label for shard in opened for sample in shard.samples]
    if not labels:
        raise UserError(f"{name}: no images in its shards of split {split!r}")
    if max(labels) < 0:
        return ShardImages(name, split, (), opened)
    listing = root / "classes.txt"
    names = listing.read_text(encoding="utf-8").split("\n") if listing.is_file() else []
    order = [n for n in names if n] or list(classes or [str(c) for c in range(max(labels) + 1)])
    if min(labels) < -1 or max(labels) >= len(order):
        bad = next(label for label in (min(labels), max(labels)) if not -1 <= label < len(order))
        raise UserError(f"{name}: label {bad} but classes are 0..{len(order) - 1}")
    return ShardImages(name, split, order, opened)


def read_index(tar: Path) -> Shard:
    """Find the samples of a shard, without reading its images."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    others: dict[str, str] = {}  # key up to the first dot -> a member that is neither
    unread: list[str] = []
    shard = Shard(tar)
    try:
        with tarfile.open(tar, "r:") as archive:  # compressed ones have no random access
            for member in archive:
                stem, extension = _split_name(member.name)
                if member.isdir():
                    continue
                if not extension or not member.isreg() or member.issparse():  # links have no bytes of their own
                    unread.append(member.name)
                elif f".{extension}" in IMAGE_SUFFIXES:
                    if stem in images:
                        twice = f"{images[stem].name}, {member.name}"
                        raise UserError(f"the key {stem!r} has two images ({twice}); every sample needs its own key")
                    images[stem] = member
                elif extension == "cls":
                    if stem in labels:
                        raise UserError(f"the key {stem!r} has two labels; every sample needs its own key")
                    labels[stem] = _number(archive, member)
                else:
                    others[_key(stem)] = member.name
            _check_end(tar, archive.offset)
    except tarfile.TarError as err:
        raise UserError(f"{tar}: {err} (shards are plain tar files, neither compressed nor cut short)") from None
    except UserError as err:
        raise UserError(f"{tar}: {err}") from None
    second = {stem for stem in images if _key(stem) != stem and stem not in labels and _key(stem) in {*images, *labels}}
    shard.samples = [
        Sample(stem, images[stem].offset_data, images[stem].size, labels.get(stem, -1))
        for stem in sorted(images.keys() - second)
    ]
    shard.drop("labels without an image", (f"{stem}.cls" for stem in labels.keys() - images.keys()))
    shard.drop("images under a second extension", (images[stem].name for stem in second))
    known = {_key(stem) for stem in (*images, *labels)}
    shard.drop("samples without an image", (name for key, name in others.items() if key not in known))
    shard.drop("members that are links, hidden or have no extension", unread)
    return shard


def _check_end(tar: Path, offset: int) -> None:
    """tarfile takes a damaged header for the end of the archive, which a block of zeros marks."""
    with open(tar, "rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if not block:
        logger.warning("%s: no end mark after its last member; was it cut short?", tar)
    elif block != bytes(tarfile.BLOCKSIZE):
        raise UserError(f"damaged or cut short at byte {offset}")


def _split_name(member: str) -> tuple[str, str]:
    """The path up to the last dot of the file name, and the extension in small letters; "" for hidden files."""
    folder, slash, file = member.rpartition("/")
    stem, _, extension = file.rpartition(".")
    return (folder + slash + stem, extension.lower()) if stem and not file.startswith(".") else (member, "")


def _key(stem: str) -> str:
    """WebDataset's key: the path up to the first dot of the file name."""
    folder, slash, file = stem.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _number(archive: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    content = archive.extractfile(member)
    text = content.read(64) if content is not None else b""
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{member.name} holds {text[:20]!r}, expected the number of a class") from None


def _shards_of(name: str, root: Path, split: str) -> list[Path]:
    """The tar files of a split; files that belong to none are named in the log."""
    inner = [p.name for p in root.iterdir() if p.is_dir()]
    if any(n in ("train", *EVALUATION_SPLITS) for n in inner):
        root = root / choose_split(name, split, inner)
        chosen = sorted(root.glob("*.tar"))
    else:
        words = {p: re.split(r"[^A-Za-z]+", p.stem) for p in root.glob("*.tar")}  # "latest" is not of test
        splits = [s for s in ("train", *EVALUATION_SPLITS) if any(s in each for each in words.values())]
        if not splits and split == "train":
            return sorted(words)
        wanted = choose_split(name, split, splits)
        chosen = sorted(p for p, each in words.items() if wanted in each)
        if stray := sorted(p.name for p, each in words.items() if not set(splits) & set(each)):
            logger.warning("%s: %d shards are of no split by their name: %s", root, len(stray), few(stray))
    if packed := sorted(p.name for p in root.iterdir() if p.name.endswith(_COMPRESSED)):
        logger.warning("%s: %d shards are compressed, left out (unpack to .tar): %s", root, len(packed), few(packed))
    return chosen
