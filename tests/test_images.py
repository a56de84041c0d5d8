"""Decoding: exact pixels for what is allowed, a reason for what is not, never a silent repair."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from crsbench.errors import DataError
from crsbench.images import canonical_image, decode_image, inspect_image, inspect_images

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
PICTURE = Image.fromarray(PIXELS)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "image.bin"
    path.write_bytes(raw)
    return path


def sixteen_bit_png(colour_type: int, n_channels: int) -> bytes:
    """Return an 8 x 8 PNG with 16 bits a channel, which Pillow cannot write in colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + b"\x12\x34" * n_channels * 8 for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 16, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def with_flipped_bit(raw: bytes, position: int) -> bytes:
    return raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]


def with_alpha(alpha: int) -> Image.Image:
    image = PICTURE.convert("RGBA")
    image.putpixel((3, 3), (9, 9, 9, alpha))
    return image


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_rgb_is_decoded_to_the_stored_pixels(tmp_path, kind):
    decoded = decode_image(written(tmp_path, encoded(PICTURE, kind)))
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, PIXELS)


def test_jpeg_and_webp_are_decoded(tmp_path):
    for kind in ("JPEG", "WEBP"):
        assert decode_image(written(tmp_path, encoded(PICTURE, kind))).shape == (20, 30, 3)


GREY = PICTURE.convert("L")
BINARY = PICTURE.convert("1")
PALETTE = PICTURE.convert("P")
CMYK = PICTURE.convert("CMYK")


@pytest.mark.parametrize(
    ("raw", "expected", "mode", "note"),
    [
        (encoded(GREY, "PNG"), np.dstack([np.asarray(GREY)] * 3), "L", ""),
        (
            encoded(BINARY, "PNG"),
            np.dstack([np.asarray(BINARY) * np.uint8(255)] * 3),
            "1",
            "1-bit converted",
        ),
        (
            encoded(PALETTE, "PNG"),
            np.reshape(PALETTE.getpalette(), (-1, 3))[np.asarray(PALETTE)],
            "P",
            "palette converted",
        ),
        (encoded(CMYK, "TIFF"), PIXELS, "CMYK", "CMYK converted"),
        (encoded(PICTURE.convert("RGBA"), "PNG"), PIXELS, "RGBA", "opaque alpha dropped"),
        (
            encoded(GREY.convert("LA"), "PNG"),
            np.dstack([np.asarray(GREY)] * 3),
            "LA",
            "opaque alpha dropped",
        ),
    ],
    ids=["grey", "1-bit", "palette", "CMYK", "opaque RGBA", "opaque grey alpha"],
)
def test_other_modes_become_rgb_and_the_conversion_is_noted(tmp_path, raw, expected, mode, note):
    path = written(tmp_path, raw)
    np.testing.assert_array_equal(decode_image(path), expected)
    report = inspect_image(path)
    assert (report.mode, report.note, report.problem) == (mode, note, None)


UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda x: x,
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: np.transpose(x, (1, 0, 2)),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(np.transpose(x, (1, 0, 2)), 2),
    8: lambda x: np.rot90(x, 1),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_the_exif_orientation_is_applied_and_noted(tmp_path, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = written(tmp_path, encoded(PICTURE, kind, exif=exif))
    expected = UPRIGHT[orientation](PIXELS)
    np.testing.assert_array_equal(decode_image(path), expected)
    report = inspect_image(path)
    assert (report.height_px, report.width_px) == expected.shape[:2]
    assert report.note == ("EXIF rotated" if orientation > 1 else "")


JPEG = encoded(PICTURE, "JPEG")
PNG = encoded(PICTURE, "PNG")
BROKEN_EXIF = b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "zero bytes"),
        (b"no picture", "no picture of a known format"),
        (encoded(PICTURE, "GIF"), "no picture of a known format"),
        (JPEG[:-1], "truncated"),
        (JPEG[: len(JPEG) // 2], "truncated"),
        (PNG[:-13], "truncated"),
        (PNG[: len(PNG) // 2], "truncated"),
        (PNG[:20], "truncated"),
        (with_flipped_bit(PNG, len(PNG) // 2), "damaged"),
        (encoded(PICTURE, "JPEG", exif=BROKEN_EXIF), "damaged"),
        (sixteen_bit_png(0, 1), "more than 8 bits"),
        (sixteen_bit_png(2, 3), "more than 8 bits"),
        (sixteen_bit_png(4, 2), "more than 8 bits"),
        (sixteen_bit_png(6, 4), "more than 8 bits"),
        (encoded(GREY.convert("F"), "TIFF"), "more than 8 bits"),
        (encoded(GREY.convert("I"), "TIFF"), "more than 8 bits"),
        (encoded(with_alpha(254), "PNG"), "translucent"),
        (encoded(with_alpha(0), "TIFF"), "translucent"),
        (encoded(PALETTE, "PNG", transparency=int(np.asarray(PALETTE)[0, 0])), "translucent"),
        (encoded(PICTURE, "TIFF", save_all=True, append_images=[PICTURE]), "holds 2 pictures"),
        (encoded(Image.new("LAB", (4, 4)), "TIFF"), "mode LAB"),
    ],
)
def test_what_cannot_be_decoded_without_loss_is_refused_with_the_reason(tmp_path, raw, reason):
    path = written(tmp_path, raw)
    report = inspect_image(path)
    assert report.bytes == len(raw)
    assert reason in str(report.problem)
    with pytest.raises(DataError, match=rf"image\.bin: .*{reason}"):
        decode_image(path)


def test_a_picture_that_would_fill_the_memory_is_refused_before_it_is_decoded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("crsbench.images.MAX_PIXELS", 599)
    path = written(tmp_path, PNG)
    assert inspect_image(path).problem == "30 x 20 px, more than 599 pixels"


def test_there_is_one_limit_of_size_and_it_is_not_pillows():
    assert Image.MAX_IMAGE_PIXELS is None


def test_a_missing_file_is_reported_not_raised(tmp_path):
    report = inspect_image(tmp_path / "none.png")
    assert (report.bytes, report.problem) == (0, "cannot be read: No such file or directory")
    with pytest.raises(DataError, match=r"none\.png: cannot be read: No such file"):
        decode_image(tmp_path / "none.png")


def test_the_switch_that_hides_damage_is_not_tolerated(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES is set"):
        inspect_image(written(tmp_path, PNG))


@pytest.mark.parametrize(
    ("size", "max_side_px", "expected"),
    [
        ((30, 20), 30, (20, 30, 3)),
        ((30, 20), 15, (10, 15, 3)),
        ((20, 30), 15, (15, 10, 3)),
        ((1, 300), 100, (100, 1, 3)),
        ((101, 67), 50, (33, 50, 3)),
    ],
)
def test_the_longest_side_is_limited_and_the_ratio_kept(tmp_path, size, max_side_px, expected):
    path = written(tmp_path, encoded(Image.new("RGB", size), "PNG"))
    assert canonical_image(path, max_side_px=max_side_px).shape == expected


def test_a_small_picture_is_left_alone(tmp_path):
    path = written(tmp_path, PNG)
    np.testing.assert_array_equal(canonical_image(path, max_side_px=1024), PIXELS)


def test_shrinking_uses_lanczos_on_upright_rgb(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = written(tmp_path, encoded(PICTURE, "PNG", exif=exif))
    upright = Image.fromarray(np.rot90(PIXELS, -1))
    expected = np.asarray(upright.resize((10, 15), Image.Resampling.LANCZOS))
    np.testing.assert_array_equal(canonical_image(path, max_side_px=15), expected)


def test_reports_come_in_the_order_of_the_paths_for_any_number_of_threads(tmp_path):
    paths = [tmp_path / f"{width}.png" for width in (3, 1, 2)]
    for path in paths:
        Image.new("RGB", (int(path.stem), 1)).save(path)
    for threads in (1, 4):
        reports = list(inspect_images(paths, threads=threads))
        assert [report.width_px for report in reports] == [3, 1, 2]
