"""Every kind of image file that users feed: shown as a viewer shows it, or refused by name."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from aotadmm_timm.data.decode import Decoding, UnreadableImage, read_image, to_rgb


def picture() -> Image.Image:
    """32 wide, 24 high; a ramp with a red square in the upper left corner."""
    pixels = np.zeros((24, 32, 3), np.uint8)
    pixels[..., 0] = pixels[..., 1] = pixels[..., 2] = np.linspace(0, 255, 32).astype(np.uint8)
    pixels[:8, :8] = (255, 0, 0)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP", "GIF", "JPEG", "PPM"])
def test_every_format_gives_the_same_picture(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"bärenfell 東京 1.{kind.lower()}"
    path.write_bytes(encoded(picture(), kind, **({"lossless": True} if kind == "WEBP" else {})))
    image = read_image(path)
    assert image.mode == "RGB"
    assert image.size == (32, 24)
    error = np.abs(np.asarray(image).astype(int) - np.asarray(picture()).astype(int))
    assert error.mean() < (4 if kind in ("JPEG", "GIF") else 1e-9)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(kind: str, orientation: int) -> None:
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Image.Transpose values that undo each orientation
    stored = picture() if orientation == 1 else picture().transpose(Image.Transpose(inverse[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read_image(encoded(stored, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {})))
    np.testing.assert_array_equal(np.asarray(image), np.asarray(picture()))


def test_damaged_exif_keeps_the_pixels() -> None:
    data = encoded(picture(), "PNG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff")
    np.testing.assert_array_equal(np.asarray(read_image(data)), np.asarray(picture()))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_gray_equals_its_8_bit_copy(kind: str) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    image = read_image(encoded(Image.fromarray(ramp), kind))
    expected = np.round(ramp / 257.0).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(image), np.repeat(expected[..., None], 3, axis=2))


def test_samples_without_an_agreed_range_are_refused() -> None:
    wide = Image.fromarray(np.array([[0, 70000]], np.int32))
    with pytest.raises(UnreadableImage, match=r"samples from 0 to 70000"):
        read_image(encoded(wide, "TIFF"))
    for bad in ([0, 200], [-3, 0.5], [0, 70000]):  # 0..255 or 0..65535? resampled? radiance?
        with pytest.raises(UnreadableImage, match=f"floating-point samples from {bad[0]:g} to {bad[1]:g}.*--sample-ra"):
            read_image(floats(bad))
    for bad in ([0, np.nan], [0, np.inf]):
        with pytest.raises(UnreadableImage, match="NaN or infinite samples"):
            read_image(floats(bad))


def floats(values: list[float]) -> bytes:
    return encoded(Image.fromarray(np.array([values], np.float32)), "TIFF")


@pytest.mark.parametrize(
    ("samples", "sample_range", "shown"),
    [
        ([0, 0.25, 0.5, 1], None, [0, 64, 128, 255]),
        ([0.2, 0.3], None, [51, 77]),  # its own darkest and brightest sample do not matter
        ([0, 0], None, [0, 0]),
        ([0, 1.0000001], None, [0, 255]),
        ([0, 257, 65535], None, [0, 1, 255]),
        ([0, 200], (0, 255), [0, 200]),
        ([-1, 0, 3], (-1, 1), [0, 128, 255]),
        ([0, 100000], (0, 200000), [0, 128]),
    ],
)
def test_the_range_of_floating_point_samples(
    samples: list[float], sample_range: tuple[float, float] | None, shown: list[int]
) -> None:
    decoding = Decoding(sample_range=sample_range)
    assert np.asarray(read_image(floats(samples), decoding=decoding))[0, :, 1].tolist() == shown
    if sample_range is not None and all(value == int(value) for value in samples):
        whole = encoded(Image.fromarray(np.array([samples], np.int32)), "TIFF")
        assert np.asarray(read_image(whole, decoding=decoding))[0, :, 1].tolist() == shown


def test_white_is_zero_in_floating_point_files_too() -> None:
    data = encoded(Image.fromarray(np.array([[0, 0.25, 1]], np.float32)), "TIFF", tiffinfo={262: 0})
    assert np.asarray(read_image(data))[0, :, 0].tolist() == [255, 191, 0]


@pytest.mark.parametrize("wrong", [{"max_pixels": 0}, {"sample_range": (1.0, 1.0)}])
def test_decoding_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Decoding(**wrong)


def test_transparent_pixels_become_white_whatever_hides_under_them() -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[..., 0] = 255  # red everywhere ...
    pixels[:, 4:, 3] = 255  # ... but only the right half is opaque
    pixels[0, 0] = (0, 0, 255, 128)
    shown = np.asarray(read_image(encoded(Image.fromarray(pixels, "RGBA"), "PNG")))
    assert (shown[1:, :4] == 255).all()
    assert (shown[:, 4:] == (255, 0, 0)).all()
    assert np.abs(shown[0, 0].astype(int) - (127, 127, 255)).max() <= 1
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    shown = np.asarray(read_image(encoded(palette, "PNG", transparency=0)))
    np.testing.assert_array_equal(shown[0], [[255, 255, 255], [40, 50, 60]])
    gray_alpha = Image.fromarray(np.array([[[7, 0], [7, 255]]], np.uint8), "LA")
    np.testing.assert_array_equal(np.asarray(read_image(encoded(gray_alpha, "PNG")))[0], [[255] * 3, [7] * 3])


def test_cmyk_gray_and_bilevel_keep_their_brightness() -> None:
    cmyk = read_image(encoded(picture().convert("CMYK"), "JPEG", quality=95))
    assert np.abs(np.asarray(cmyk).astype(int) - np.asarray(picture())).mean() < 4
    gray = picture().convert("L")
    np.testing.assert_array_equal(np.asarray(read_image(encoded(gray, "PNG")))[..., 1], np.asarray(gray))
    bilevel = Image.fromarray(np.eye(8, dtype=bool))
    np.testing.assert_array_equal(np.asarray(read_image(encoded(bilevel, "PNG")))[..., 2], np.eye(8) * 255)


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (9, 9), color) for color in ("red", "lime", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(data).getpixel((4, 4)) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_a_truncated_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    path = tmp_path / f"cut.{kind.lower()}"
    for part in (data[: len(data) // 2], data[:20], b""):
        path.write_bytes(part)
        with pytest.raises(UnreadableImage, match=r"cut\."):
            read_image(path)


def test_bad_paths_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match=r"absent\.png: No such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(UnreadableImage, match="directory"):
        read_image(tmp_path)
    (tmp_path / "text.jpg").write_text("not a picture")
    with pytest.raises(UnreadableImage, match="not an image in a known format") as caught:
        read_image(tmp_path / "text.jpg")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_file_that_would_start_an_interpreter_is_not_tried() -> None:
    assert encoded(picture(), "EPS").startswith(b"%!PS")
    with pytest.raises(UnreadableImage, match="not an image in a known format"):
        read_image(encoded(picture(), "EPS"), name="drawing.jpg")


def test_a_90_megapixel_file_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    for size in ((10_000, 9_000), (19_000, 9_600)):  # over the limit, and over twice the limit: Pillow's own refusal
        Image.new("1", size).save(path)
        pixels = size[0] * size[1]
        with pytest.raises(UnreadableImage, match=rf"huge\.png: {pixels} pixels.* --max-pixels {pixels} allows it"):
            read_image(path)


def test_the_largest_image_is_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    data = encoded(picture(), "PNG")  # 768 pixels, over twice the limit
    with pytest.raises(UnreadableImage, match="limit of 100; --max-pixels 768 allows it"):
        read_image(data)
    image = read_image(data, decoding=Decoding(max_pixels=768))
    assert image.crop((0, 0, 20, 20)).size == (20, 20)  # Pillow checks crops, too
    with pytest.raises(UnreadableImage, match="limit of 767; --max-pixels 768 allows it"):
        read_image(data, decoding=Decoding(max_pixels=767))


def test_to_rgb_leaves_the_callers_picture_alone() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = Image.open(io.BytesIO(encoded(picture(), "PNG", exif=exif)))
    assert to_rgb(opened).size == (24, 32)
    assert opened.size == (32, 24)
    assert to_rgb(opened).size == (24, 32)
