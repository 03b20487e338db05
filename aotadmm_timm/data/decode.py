"""The one place where an image file becomes an RGB picture, or is refused by name.

timm's readers ignore the EXIF orientation, let hidden colors shine through alpha 0, clip 16-bit gray to white and put
the next image in place of an unreadable one. Training, evaluation and feature extraction therefore all decode here.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps

from aotadmm_timm.errors import UserError

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
_ROUNDING = 1e-6  # by which float32 samples may leave 0..1


class UnreadableImage(UserError):
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


@dataclass(frozen=True)
class Decoding:
    """What the files alone do not say. The options `--max-pixels` and `--sample-range` are named after it.

    Args:
        max_pixels: the largest image that is decoded; Pillow's limit against decompression bombs by default
            (`PIL.Image.MAX_IMAGE_PIXELS`, 89 megapixels). A higher one raises Pillow's in every process that decodes.
        sample_range: black and white of floating-point and 32-bit integer samples; found in each file by default.
    """

    max_pixels: int | None = None
    sample_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.max_pixels is not None and self.max_pixels < 1:
            raise UserError(f"max_pixels must be positive, got {self.max_pixels}")
        if self.sample_range is not None and not self.sample_range[0] < self.sample_range[1]:
            raise UserError(f"sample_range must be black, then white, got {self.sample_range}")

    def limit(self) -> float:
        """The number of pixels that is allowed; Pillow allows it afterwards, too."""
        if self.max_pixels is None:
            return Image.MAX_IMAGE_PIXELS or float("inf")
        if Image.MAX_IMAGE_PIXELS is not None and self.max_pixels > Image.MAX_IMAGE_PIXELS:
            Image.MAX_IMAGE_PIXELS = self.max_pixels
        return self.max_pixels


AS_IT_IS = Decoding()


def read_image(
    source: str | Path | bytes | BinaryIO, *, name: str | None = None, decoding: Decoding = AS_IT_IS
) -> Image.Image:
    """Decode one file to a loaded RGB picture (W, H as `.size`), the first frame if there are several.

    See `to_rgb` for the color rules. Raw formats, vector formats and everything outside `_FORMATS` are refused.

    Args:
        source: path, the file's bytes, or a binary file object.
        name: what to call the image in an error; the path by default.
        decoding: the largest size, and the range of samples that have none of their own.
    Raises: UnreadableImage if the file is missing, damaged, cut short, of no known format, or too large.
    """
    if name is None:
        name = str(source) if isinstance(source, str | Path) else "image in memory"
    try:
        if isinstance(source, str | Path):
            # Opened here: Pillow keeps a lazily read file open when decoding fails half-way.
            with open(source, "rb") as file:
                return to_rgb(_open(file, name, decoding), name=name, decoding=decoding)
        binary = io.BytesIO(source) if isinstance(source, bytes) else source
        return to_rgb(_open(binary, name, decoding), name=name, decoding=decoding)
    except OSError as error:
        raise UnreadableImage(name, _reason(error)) from error


def to_rgb(image: Image.Image, *, name: str | None = None, decoding: Decoding = AS_IT_IS) -> Image.Image:
    """Turn any PIL image into RGB as a viewer would show it.

    The EXIF orientation is applied. Transparent pixels are composited on white, so colors hidden under alpha 0 never
    show. 16-bit gray is scaled to 8 bit (65535 -> 255, and 4095 -> 255 for 12-bit TIFF). Palette, gray, CMYK, YCbCr and
    LAB are converted by Pillow; color profiles are not applied (nor does timm). Floating-point samples have no agreed
    range: without `decoding.sample_range` those within 0..1 are of 0..1, those of which one is above 255 and none above
    65535 are of 0..65535, and others are refused; so are integer samples outside 0..65535.

    Raises: UnreadableImage naming `name` (default: the file that the image was opened from).
    """
    if name is None:
        name = str(getattr(image, "filename", "") or "image in memory")
    if image.width * image.height > (limit := decoding.limit()):
        raise UnreadableImage(name, _too_large(image.width * image.height, limit))
    try:
        image.load()
        tags = getattr(image, "tag_v2", {})  # TIFF's; lost with the first copy
        image = _upright(image)
        if image.mode in _GRAY_16:
            return _integers_to_8_bit(image, tags, name, decoding).convert("RGB")
        if image.mode.startswith("F"):
            return _floats_to_8_bit(image, tags, name, decoding).convert("RGB")
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


def _open(file: BinaryIO, name: str, decoding: Decoding) -> Image.Image:
    limit = decoding.limit()
    try:
        Image.init()  # once per process; WEBP, JPEG2000 and AVIF are missing from some builds of Pillow
        return Image.open(file, formats=[kind for kind in _FORMATS if kind in Image.OPEN])
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # says the number of pixels first
        found = re.search(r"\d+", str(error))
        raise UnreadableImage(name, _too_large(int(found[0]), limit) if found else str(error)) from error
    except Exception as error:
        raise UnreadableImage(name, _reason(error)) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data: the orientation is unknown, but the pixels are whole
        orientation = 1
    return image if orientation == 1 else ImageOps.exif_transpose(image)


def _too_large(pixels: int, limit: float) -> str:
    return f"{pixels} pixels, over the decompression-bomb limit of {limit:.0f}; --max-pixels {pixels} allows it"


def _integers_to_8_bit(image: Image.Image, tags: Mapping[int, Any], name: str, decoding: Decoding) -> Image.Image:
    samples = np.asarray(image)
    if image.mode == "I" and decoding.sample_range is not None:
        return _to_8_bit(samples, decoding.sample_range, tags)
    samples = samples.astype(np.int64)
    low, high = samples.min(), samples.max()
    if low < 0 or high > 65535:
        said = "only 0..65535 can be scaled to 8 bit, other ranges are said by --sample-range"
        raise UnreadableImage(name, f"integer samples from {low} to {high}; {said}")
    white = 4095 if tags.get(_TIFF_BITS) == (12,) else 65535
    if tags.get(_TIFF_PHOTOMETRIC) == 0:  # WhiteIsZero, which Pillow undoes for 8 bit only
        samples = white - samples
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        samples[samples == transparent] = white
    return Image.fromarray(((samples * 255 + white // 2) // white).astype(np.uint8))


def _floats_to_8_bit(image: Image.Image, tags: Mapping[int, Any], name: str, decoding: Decoding) -> Image.Image:
    samples = np.asarray(image)
    low, high = float(samples.min()), float(samples.max())  # NaN if any is
    if not np.isfinite([low, high]).all():
        raise UnreadableImage(name, "NaN or infinite samples")
    if decoding.sample_range is not None:
        black_and_white = decoding.sample_range
    elif low >= -_ROUNDING and high <= 1 + _ROUNDING:
        black_and_white = 0.0, 1.0
    elif low >= 0 and 255 < high <= 65535:
        black_and_white = 0.0, 65535.0
    else:  # 0..255 as well as 0..65535, if all are below 255
        said = "neither 0..1 nor plainly 0..65535; --sample-range BLACK WHITE says what they are"
        raise UnreadableImage(name, f"floating-point samples from {low:g} to {high:g}, {said}")
    return _to_8_bit(samples, black_and_white, tags)


def _to_8_bit(samples: np.ndarray, black_and_white: tuple[float, float], tags: Mapping[int, Any]) -> Image.Image:
    black, white = black_and_white
    share = ((samples.astype(np.float64) - black) / (white - black)).clip(0, 1)
    if tags.get(_TIFF_PHOTOMETRIC) == 0:
        share = 1 - share
    return Image.fromarray(np.floor(share * 255 + 0.5).astype(np.uint8))


def _reason(error: BaseException) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image in a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
