"""Data sets that a library opens: torchvision's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from aotadmm_timm.errors import UserError

from .decode import UnreadableImage, to_rgb
from .samples import Images
from .splits import EVALUATION_SPLITS


class LibraryImages(Images):
    """The first parts of the items of `data`, PIL images that a library decodes; what it leaves of the color rules is
    still ours."""

    def __init__(self, name: str, split: str, labels: Sequence[int], classes: Sequence[str], data: Any) -> None:
        super().__init__(name, split, labels, classes)
        self.data = data

    def read(self, row: int) -> Image.Image:
        self.decoding.limit()  # known to Pillow before the library opens the file
        try:
            image = self.data[row][0]
        except (OSError, SyntaxError, ValueError) as error:  # Pillow's for damaged files
            raise UnreadableImage(self.row_id(row), str(error) or type(error).__name__) from error
        return to_rgb(image, name=self.row_id(row), decoding=self.decoding)


def torchvision(name: str, split: str, *, root: str | Path | None, download: bool) -> LibraryImages:
    """A torchvision data set through timm's factory."""
    from timm.data import create_dataset

    root = Path(root) if root else Path.home() / ".cache" / "torchvision"
    try:
        data: Any = create_dataset(
            name, root=str(root), split="validation" if split in EVALUATION_SPLITS else split, download=download
        )
    except AssertionError as err:
        raise UserError(f"{name}: {err}") from None
    except RuntimeError as err:  # torchvision: not found or corrupted; or a failed download
        hint = "" if download else "; --dataset-download fetches it, --data-dir names another folder"
        raise UserError(f"{name}: not found under {root}{hint} ({err})") from None
    except OSError as err:
        raise UserError(f"{name}: could not be downloaded to {root}: {err}") from None
    labels = data.targets if hasattr(data, "targets") else [data[i][1] for i in range(len(data))]
    classes = getattr(data, "classes", None) or [str(c) for c in range(int(max(labels)) + 1)]
    return LibraryImages(name, split, [int(x) for x in labels], classes, data)
