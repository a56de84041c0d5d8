"""The embedded demo's data: synthetic pictures, drawn from a seed and called phantoms.

No picture shows a person. What separates the classes is where and what shape the marks are, as
in the images that a phantom stands for; colour, brightness, scale and rotation vary at random.

A draw depends on (kind, n_images, size_px, seed) alone. Its plan says which subject (lesion or
patient) has which images and labels; then each image follows from its own identity, so that the
order of drawing does not matter. The files are those that the folder adapter reads:
``labels.csv`` (id, path, group and the label columns) and ``images/{id}.png``.
"""

import csv
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from crsbench.datasets.drawings import dermoscopy, fundus, radiograph
from crsbench.datasets.drawings.cases import Case
from crsbench.errors import ConfigError, DataError

LABELS = "labels.csv"
IMAGES = "images"
SMALLEST_DRAW = 16
SIZES_PX = (32, 1024)
#: Of the PNG files: noise hardly shrinks further, and each level takes time.
COMPRESSION = 1


@dataclass(frozen=True)
class _Kind:
    """How a kind of phantom is planned and drawn, and its columns beside id, path, group."""

    plan: Callable[[int, int], list[Case]]
    draw: Callable[[Case, int, int], Image.Image]
    columns: Sequence[str]


KINDS = {
    dermoscopy.KIND: _Kind(dermoscopy.plan, dermoscopy.draw, dermoscopy.COLUMNS),
    fundus.KIND: _Kind(fundus.plan, fundus.draw, fundus.COLUMNS),
    **{site.kind: _Kind(site.plan, site.draw, radiograph.COLUMNS) for site in radiograph.SITES},
}


def draw_dataset(
    kind: str, *, n_images: int, size_px: int, seed: int, directory: str | Path
) -> None:
    """Draw a phantom dataset into `directory`: ``labels.csv`` and ``images/``.

    The files are written beside the directory and renamed, so that what is half drawn never
    stands under its name. An older draw there is replaced.

    Parameters
    ----------
    kind
        ``dermoscopy`` (8 classes), ``fundus`` (5 grades), ``radiograph`` (14 labels) or
        ``institution`` (radiographs of another scanner and population).
    n_images
        Number of images, at least 16.
    size_px
        Side of the square images, 32 to 1,024.
    seed
        Any whole number from 0; another seed is another dataset.

    Raises
    ------
    ConfigError
        An argument is not one of those allowed.
    DataError
        The directory holds something other than an older draw.
    """
    _check(kind, n_images, size_px, seed)
    directory = Path(directory)
    _refuse_foreign_files(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as beside:
        draft = Path(beside) / directory.name
        _write(KINDS[kind], draft, n_images=n_images, size_px=size_px, seed=seed)
        if directory.exists():
            shutil.rmtree(directory)
        draft.rename(directory)


def _check(kind: str, n_images: int, size_px: int, seed: int) -> None:
    if kind not in KINDS:
        raise ConfigError(f"phantom kind {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    if n_images < SMALLEST_DRAW:
        raise ConfigError(f"phantom n_images is {n_images}: give at least {SMALLEST_DRAW}")
    if not SIZES_PX[0] <= size_px <= SIZES_PX[1]:
        raise ConfigError(f"phantom size_px is {size_px}: give {SIZES_PX[0]} to {SIZES_PX[1]}")
    if seed < 0:
        raise ConfigError(f"phantom seed is {seed}: give a whole number from 0")


def _refuse_foreign_files(directory: Path) -> None:
    if directory.is_file():
        raise DataError(f"{directory} is a file, expected a folder: name another for the phantoms")
    foreign = {path.name for path in directory.glob("*")} - {LABELS, IMAGES}
    if foreign:
        raise DataError(
            f"{directory} holds {min(foreign)!r}, which no phantom draw wrote: "
            "empty the folder or name another"
        )


def _write(kind: _Kind, directory: Path, *, n_images: int, size_px: int, seed: int) -> None:
    (directory / IMAGES).mkdir(parents=True)
    cases = sorted(kind.plan(n_images, seed), key=lambda case: case.identifier)
    for case in cases:
        image = kind.draw(case, size_px, seed)
        image.save(directory / _image_path(case), compress_level=COMPRESSION)
    with (directory / LABELS).open("w", encoding="utf-8", newline="") as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerow(["id", "path", "group", *kind.columns])
        for case in cases:
            cells = [case.cells[column] for column in kind.columns]
            table.writerow([case.identifier, _image_path(case), case.group, *cells])


def _image_path(case: Case) -> str:
    return f"{IMAGES}/{case.identifier}.png"
