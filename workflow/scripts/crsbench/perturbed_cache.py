"""Perturbed images on disk, lossless, so that a second encoder need not make them again.

One file holds all conditions of an image. It is found by their pixel digests in the perturbation
manifest and compared with them each time it is read, so that a cache can be stale or shared between
protocols and never be wrong. Nothing depends on it: the folder can be removed at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from crsbench.digests import digest
from crsbench.errors import DataError
from crsbench.files import written_atomically
from crsbench.perturbations import Pixels, pixels_sha256

_COMPRESSION = "zstd"


@dataclass(frozen=True)
class PerturbedCache:
    """A folder of perturbed images.

    Parameters
    ----------
    folder
        Where the files lie; made when the first one is written.
    """

    folder: str | Path

    def path(self, expected: Sequence[str]) -> Path:
        """Return the file of the images with these pixel digests, in this order."""
        name = digest(*expected)
        return Path(self.folder) / name[:2] / f"{name}.npy.zst"

    def read(self, expected: Sequence[str]) -> list[Pixels] | None:
        """Return the images with these pixel digests, or None if they are not here.

        Raises
        ------
        DataError
            The file is damaged.
        """
        path = self.path(expected)
        if not path.is_file():
            return None
        try:
            with pa.input_stream(str(path), compression=_COMPRESSION) as stream:
                stack = np.lib.format.read_array(stream, allow_pickle=False)
            images = list(np.ascontiguousarray(np.broadcast_to(stack, (*stack.shape[:3], 3))))
            intact = [pixels_sha256(image) for image in images] == list(expected)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: damaged ({error}); delete the file") from error
        if not intact:
            raise DataError(f"{path}: not the pixels of the perturbation manifest; delete the file")
        return images

    def write(self, expected: Sequence[str], images: Sequence[Pixels]) -> None:
        """Store images (H, W, 3) that have these pixel digests; grey ones as one plane."""
        stack = np.stack(images)
        if all(np.array_equal(stack[..., 0], stack[..., channel]) for channel in (1, 2)):
            stack = np.ascontiguousarray(stack[..., :1])
        with (
            written_atomically(self.path(expected)) as temporary,
            pa.output_stream(str(temporary), compression=_COMPRESSION) as stream,
        ):
            np.lib.format.write_array(stream, stack, allow_pickle=False)
