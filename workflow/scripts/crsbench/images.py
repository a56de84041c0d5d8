"""The one way in which an image file becomes pixels: RGB uint8 (H, W, 3), upright.

- A file is decoded to its last byte, or refused: nothing is guessed for what is missing.
- The EXIF orientation is applied. Colour profiles are not: the pixel values count as stored.
- Palette, grey, 1-bit and CMYK pictures become RGB; an alpha channel that is opaque is dropped.
  Such a conversion is noted.
- Whatever would lose information or needs a guess is refused: more than 8 bits a channel, float
  pixels, translucency, several pictures in a file, more than `MAX_PIXELS`.
"""

import hashlib
import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, ImageOps

from crsbench.errors import DataError
from crsbench.likeness import perceptual_hash

FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP")
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"})
MAX_PIXELS = 2**28

# Pillow warns above one limit and raises above another; here is one limit, checked before any
# pixel is decoded, so that the same file is never a warning in one process and an error in the
# next.
Image.MAX_IMAGE_PIXELS = None

_ORIENTATION = 0x0112
_CONVERSIONS = {
    "1": "1-bit converted",
    "L": "",
    "P": "palette converted",
    "RGB": "",
    "CMYK": "CMYK converted",
    "YCbCr": "YCbCr converted",
}
# What Pillow raises for bad content; UserWarning where warnings are errors (corrupt EXIF).
_DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, EOFError, UserWarning, struct.error, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class ImageReport:
    """What a full decode of one file saw.

    Parameters
    ----------
    bytes
        Size of the file; 0 where there is none.
    mode
        Pillow's name of the stored pixel format; None where the file is not a picture.
    width_px, height_px
        Size of the upright picture; None where it was not decoded.
    note
        Conversions that were made, joined by ``;``; empty for plain RGB and grey.
    problem
        Why the picture cannot be used; None if it can.
    sha256
        Digest of the file's bytes; None where they were not read.
    perceptual_hash
        What the picture looks like (`crsbench.likeness`); None where it was not decoded, or is of
        a single shade.
    """

    bytes: int
    mode: str | None
    width_px: int | None
    height_px: int | None
    note: str
    problem: str | None
    sha256: str | None = None
    perceptual_hash: str | None = None


class _UnusableError(Exception):
    """Why a picture is refused, in a few words; `mode` is its stored pixel format if known."""

    def __init__(self, reason: str, mode: str | None = None) -> None:
        super().__init__(reason)
        self.mode = mode


def decode_image(path: str | Path) -> np.ndarray:
    """Decode a file to its canonical pixels.

    Returns
    -------
    ndarray of uint8, (H, W, 3)
        Upright RGB at full size.

    Raises
    ------
    DataError
        The file is missing, damaged, or of a kind that the module's law refuses.
    """
    return np.array(_decode(Path(path)))


def canonical_image(path: str | Path, *, max_side_px: int) -> np.ndarray:
    """Decode a file and shrink it until its longest side is at most `max_side_px`.

    Smaller pictures are left alone. The shorter side keeps the ratio, rounded to whole pixels
    and at least one. Resampled by Pillow's Lanczos filter on the 8-bit channels (protocol,
    section 3).

    Returns
    -------
    ndarray of uint8, (H, W, 3)

    Raises
    ------
    DataError
        As `decode_image`.
    """
    image = _decode(Path(path))
    longest = max(image.size)
    if longest > max_side_px:
        width, height = (max(1, round(side * max_side_px / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    return np.array(image)


def inspect_image(path: str | Path) -> ImageReport:
    """Decode a file fully and report what was seen; bad content is a report, never an error."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        return ImageReport(0, None, None, None, "", f"cannot be read: {error.strerror}")
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        image, mode, notes = _upright(raw)
    except _UnusableError as error:
        return ImageReport(len(raw), error.mode, None, None, "", str(error), sha256)
    note = "; ".join(notes)
    return ImageReport(len(raw), mode, *image.size, note, None, sha256, perceptual_hash(image))


def inspect_images(paths: Sequence[Path], *, threads: int) -> Iterator[ImageReport]:
    """Inspect files side by side and yield their reports in the order of `paths`."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        yield from pool.map(inspect_image, paths)


def _decode(path: Path) -> Image.Image:
    try:
        return _upright(path.read_bytes())[0]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except _UnusableError as error:
        raise DataError(
            f"{path}: {error}; repair the file, or list it in the dataset's exclusions"
        ) from error


def _upright(raw: bytes) -> tuple[Image.Image, str, list[str]]:
    """Return the upright RGB picture, its stored mode, and notes of what was converted."""
    if not raw:
        raise _UnusableError("zero bytes")
    try:
        with Image.open(io.BytesIO(raw), formats=FORMATS) as opened:
            mode = opened.mode
            _refuse_by_header(opened)
            _check_chunks(raw)
            # Read first: loading a TIFF turns it, and resets what the tag says.
            turned = opened.getexif().get(_ORIENTATION, 1) in range(2, 9)
            upright = ImageOps.exif_transpose(opened)
    except Image.UnidentifiedImageError as error:
        kinds = ", ".join(FORMATS)
        raise _UnusableError(f"damaged, or no picture of a known format ({kinds})") from error
    except _DAMAGE as error:
        raise _UnusableError(f"damaged or truncated: {' '.join(str(error).split())}") from error
    rgb, conversion = _to_rgb(upright)
    notes = (["EXIF rotated"] if turned else []) + ([conversion] if conversion else [])
    return rgb, mode, notes


def _refuse_by_header(image: Image.Image) -> None:
    """Refuse what must not be decoded, before memory is taken for it."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set: it hides damage; find who sets it"
        )
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _UnusableError(f"{width} x {height} px, more than {MAX_PIXELS} pixels", image.mode)
    n_pictures = getattr(image, "n_frames", 1)
    if n_pictures != 1:
        raise _UnusableError(f"holds {n_pictures} pictures, expected one", image.mode)
    if _is_deep(image):
        raise _UnusableError("more than 8 bits a channel, expected 8", image.mode)
    if image.mode not in _CONVERSIONS and not image.has_transparency_data:
        raise _UnusableError(f"mode {image.mode}, expected 8-bit grey, palette or RGB", image.mode)


def _is_deep(image: Image.Image) -> bool:
    """Return whether 16-bit or float pixels are stored.

    Pillow reads 16-bit RGB into an 8-bit mode and drops the lower half without a word; only the
    raw mode of the file's tiles tells.
    """
    raw_modes = [
        part
        for tile in image.tile  # type: ignore[attr-defined]
        for part in (tile.args if isinstance(tile.args, tuple) else (tile.args,))
        if isinstance(part, str)
    ]
    return image.mode[0] in "IF" or any(";16" in raw for raw in raw_modes)


def _check_chunks(raw: bytes) -> None:
    """Check the checksums and the end of a PNG, which decoding its pixels leaves unread."""
    with Image.open(io.BytesIO(raw), formats=FORMATS) as image:
        image.verify()


def _to_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    """Return the picture in RGB, and what was converted in words (nothing for grey and RGB)."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        if np.asarray(rgba.getchannel("A")).min() < 255:
            raise _UnusableError("translucent pixels, expected an opaque picture", image.mode)
        return rgba.convert("RGB"), "opaque alpha dropped"
    return image.convert("RGB"), _CONVERSIONS[image.mode]
