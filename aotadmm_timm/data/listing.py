"""Image files below a folder: each once, however links run, and nothing passed over without a word."""

import heapq
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from aotadmm_timm.errors import UserError

from .decode import IMAGE_SUFFIXES


@dataclass
class Listing:
    """What `list_images` found, as paths relative to the folder with `/` between their parts, unsorted."""

    files: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # files that are no images by their ending
    hidden: list[str] = field(default_factory=list)  # folders whose name begins with a dot; they are not entered

    def notes(self) -> list[str]:
        """What was passed over, in words."""
        notes = []
        if self.others:
            notes.append(f"{len(self.others)} files are not images by their ending: {few(sorted(self.others))}")
        if self.hidden:
            notes.append(f"{len(self.hidden)} hidden folders are not searched: {few(sorted(self.hidden))}")
        return notes


def list_images(root: str) -> Listing:
    """List the image files below `root`.

    Links are followed, but no folder is entered twice: a real folder counts under its real path, one outside `root`
    under the first (sorted) of the links that lead to it. A dangling link with an image's ending is listed, so that it
    fails by name when it is read.

    Raises: UserError naming a folder that cannot be read.
    """
    found = Listing()
    entered: set[tuple[int, int]] = set()
    pending, links = [""], list[str]()
    while pending or links:
        folder = pending.pop() if pending else heapq.heappop(links)  # links last: real paths come first
        try:
            status = os.stat(os.path.join(root, folder))
            if (place := (status.st_dev, status.st_ino)) in entered:
                continue
            entered.add(place)
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as error:
            raise UserError(f"{text_of(os.path.join(root, folder))}: {error.strerror}") from error
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            link = entry.is_symlink()
            if os.path.isdir(entry.path) if link else entry.is_dir():
                if entry.name.startswith("."):
                    found.hidden.append(path)
                elif link:
                    heapq.heappush(links, path)
                else:
                    pending.append(path)
            elif os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
                found.others.append(path)
            elif _is_file(entry.path) if link else entry.is_file():  # reading a pipe would wait for ever
                found.files.append(path)
            else:
                found.others.append(path)
    return found


def _is_file(path: str) -> bool:
    return os.path.isfile(path) or not os.path.exists(path)


def few(names: Iterable[str], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    names = [text_of(name) for name in names]
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def text_of(path: str) -> str:
    """A path as valid UTF-8: bytes of another encoding are written as `\\xNN`. The same object if nothing changes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    return path
