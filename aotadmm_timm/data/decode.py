"""The one place where an image file becomes an RGB picture, or is refused by name.

timm's readers ignore the EXIF orientation, let hidden colors shine through alpha 0, clip 16-bit gray to white and put
the next image in place of an unreadable one. Training, evaluation and feature extraction therefore all decode here.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps

# File name endings (lower case) that a folder of images is searched for.
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif", ".jp2", ".avif"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)

# Decoders that may be tried (JPEG includes MPO), whatever the file calls itself. Pillow has some 40 more; one of them,
# EPS, starts an interpreter.
_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "DIB", "GIF", "PPM", "JPEG2000", "AVIF")

_GRAY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262


class UnreadableImage(ValueError):
    """A file that does not decode to an image. `path` names it, `reason` says what is wrong, both plain text."""

    def __init__(self, path: str, reason: str = "") -> None:
        if not reason:  # a loader raises a worker's error anew from its traceback alone: the last line says it all
            path, _, reason = (
                (path.strip().splitlines() or [path])[-1].rpartition("UnreadableImage: ")[2].rpartition(": ")
            )
        super().__init__(path, reason)  # both, so that the error survives pickling from a loader's worker
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read_image(source: str | Path | bytes | BinaryIO, *, name: str | None = None) -> Image.Image:
    """Decode one file to a loaded RGB picture (W, H as `.size`), the first frame if there are several.

    See `to_rgb` for the color rules. Raw formats, vector formats and everything outside `_FORMATS` are refused.

    Args:
        source: path, the file's bytes, or a binary file object.
        name: what to call the image in an error; the path by default.
    Raises: UnreadableImage if the file is missing, damaged, cut short, of no known format, or larger than Pillow's
        decompression-bomb limit (`PIL.Image.MAX_IMAGE_PIXELS`, 89 megapixels; a caller may raise it).
    """
    if name is None:
        name = str(source) if isinstance(source, str | Path) else "image in memory"
    try:
        if isinstance(source, str | Path):
            # Opened here: Pillow keeps a lazily read file open when decoding fails half-way.
            with open(source, "rb") as file:
                return to_rgb(_open(file, name), name=name)
        return to_rgb(_open(io.BytesIO(source) if isinstance(source, bytes) else source, name), name=name)
    except OSError as error:
        raise UnreadableImage(name, _reason(error)) from error


def to_rgb(image: Image.Image, *, name: str | None = None) -> Image.Image:
    """Turn any PIL image into RGB as a viewer would show it.

    The EXIF orientation is applied. Transparent pixels are composited on white, so colors hidden under alpha 0 never
    show. 16-bit gray is scaled to 8 bit (65535 -> 255, and 4095 -> 255 for 12-bit TIFF). Palette, gray, CMYK, YCbCr and
    LAB are converted by Pillow; color profiles are not applied (nor does timm). Integer samples outside 0..65535 and
    floating-point samples carry no agreed range and are refused.

    Raises: UnreadableImage naming `name` (default: the file that the image was opened from).
    """
    if name is None:
        name = str(getattr(image, "filename", "") or "image in memory")
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        size = f"{image.width}x{image.height} pixels"
        raise UnreadableImage(name, f"{size}, over the decompression-bomb limit of {limit}")
    try:
        image.load()
        tags = getattr(image, "tag_v2", {})  # TIFF's; lost with the first copy
        image = _upright(image)
        if image.mode in _GRAY_16:
            return _scale_to_8_bit(image, tags, name).convert("RGB")
        if image.mode.startswith("F"):
            raise UnreadableImage(name, "floating-point samples have no agreed range; convert it to 8 or 16 bit")
        if image.mode == "La":
            image = image.convert("LA")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise almost anything: OSError, SyntaxError, struct.error
        raise UnreadableImage(name, _reason(error)) from error


def _open(file: BinaryIO, name: str) -> Image.Image:
    try:
        Image.init()  # once per process; WEBP, JPEG2000 and AVIF are missing from some builds of Pillow
        return Image.open(file, formats=[kind for kind in _FORMATS if kind in Image.OPEN])
    except Exception as error:
        raise UnreadableImage(name, _reason(error)) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data: the orientation is unknown, but the pixels are whole
        orientation = 1
    return image if orientation == 1 else ImageOps.exif_transpose(image)


def _scale_to_8_bit(image: Image.Image, tags: Mapping[int, Any], name: str) -> Image.Image:
    samples = np.asarray(image).astype(np.int64)
    low, high = samples.min(), samples.max()
    if low < 0 or high > 65535:
        raise UnreadableImage(name, f"integer samples from {low} to {high}; only 0..65535 can be scaled to 8 bit")
    white = 4095 if tags.get(_TIFF_BITS) == (12,) else 65535
    if tags.get(_TIFF_PHOTOMETRIC) == 0:  # WhiteIsZero, which Pillow undoes for 8 bit only
        samples = white - samples
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        samples[samples == transparent] = white
    return Image.fromarray(((samples * 255 + white // 2) // white).astype(np.uint8))


def _reason(error: BaseException) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image in a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
