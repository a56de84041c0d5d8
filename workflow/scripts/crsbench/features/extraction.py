"""Feature extraction: images in, one row of float32 features per image and condition out.

Every image is read and decoded once per job. Rows are written by index, so that neither workers
nor batches can reorder or repeat them. Batch size and device are means only: in float32 a feature
moves by less than `BATCH_TOLERANCE` of the matrix's largest value. The number of threads changes
nothing at all: each of them takes whole batches, and a forward pass on the CPU uses one. Out of
memory halves the batch, never the image.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import polars as pl
import torch

from crsbench.digests import digest
from crsbench.encoders.cards import EncoderCard, card_digest, transform_digest
from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import LoadedEncoder
from crsbench.errors import ConfigError, CrsBenchError, DataError
from crsbench.features.table import check_finite, write_features
from crsbench.images import canonical_image

#: Largest change of a float32 feature with the batch size, relative to the largest absolute value.
BATCH_TOLERANCE = 1e-4

#: What finds an image (its path or sample), and its rows of the feature matrix.
Work = tuple[str, list[int]]
Progress = Callable[[int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def no_progress(_n_images: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Compute:
    """How features are computed; none of it decides what they are.

    Parameters
    ----------
    batch_size
        Images in a forward pass; halved when memory runs out.
    threads
        Workers, each of which decodes, perturbs and transforms a batch and runs its forward pass;
        on an accelerator one forward pass runs at a time.
    device
        ``auto`` takes CUDA, else MPS, else the CPU.
    """

    batch_size: int
    threads: int
    device: str


@dataclass(frozen=True)
class Features:
    """Features and what was seen on the way.

    Parameters
    ----------
    keys
        Table of N rows: ``sample``, and for perturbed images ``perturbation`` and ``severity``.
    values
        Features (N, D), float32.
    input_min, input_max
        Smallest and largest number that entered the encoder.
    dtype
        Floating-point type of the forward pass.
    """

    keys: pl.DataFrame
    values: np.ndarray
    input_min: float
    input_max: float
    dtype: str


def extract_clean(
    encoder: LoadedEncoder,
    index: pl.DataFrame,
    *,
    root: str | Path,
    max_side_px: int,
    compute: Compute,
    progress: Progress = no_progress,
) -> Features:
    """Extract the features of unperturbed images.

    Parameters
    ----------
    encoder
        A loaded encoder.
    index
        The images: ``sample``, and ``path`` relative to `root`; one row of features each.
    root
        Root of the dataset.
    max_side_px
        Longest side of the canonical image.
    compute
        Batch size, threads, device.
    progress
        Called with the number of images that have been finished since the last call.

    Raises
    ------
    DataError
        An image cannot be decoded, or a feature is not finite.
    """
    transform = build_transform(encoder.card.transform)

    def prepare(path: str) -> list[torch.Tensor]:
        return [transform(canonical_image(Path(root) / path, max_side_px=max_side_px))]

    images = [(path, [row]) for row, path in enumerate(index["path"])]
    return extract(encoder, index.select("sample"), images, prepare, compute, progress)


def extract(
    encoder: LoadedEncoder,
    keys: pl.DataFrame,
    images: Sequence[Work],
    prepare: Callable[[str], list[torch.Tensor]],
    compute: Compute,
    progress: Progress,
) -> Features:
    """Compute features batch by batch and gather them by row.

    Parameters
    ----------
    encoder, compute, progress
        As for `extract_clean`.
    keys
        What each row of features belongs to.
    images
        Each image and its rows.
    prepare
        Makes the tensors of an image, one for each of its rows.
    """
    gathered = _Gathered(len(keys))
    n_rows = len(images[0][1]) if images else 1
    per_batch = max(1, compute.batch_size // n_rows)
    batches = [images[i : i + per_batch] for i in range(0, len(images), per_batch)]
    with _one_thread_per_pass():
        forward = _Forward(encoder, compute)

        def run(batch: Sequence[Work]) -> np.ndarray:
            return forward(torch.stack([t for image, _ in batch for t in prepare(image)]))

        results = _side_by_side(run, batches, threads=compute.threads)
        for batch, features in zip(batches, results, strict=True):
            gathered.put([row for _, rows in batch for row in rows], features)
            progress(len(batch))
    values = gathered.complete(keys, encoder.card)
    return Features(keys, values, forward.input_min, forward.input_max, encoder.card.dtype)


def _side_by_side(
    function: Callable[[Item], Result], items: Sequence[Item], *, threads: int
) -> Iterator[Result]:
    """Yield the results in the items' order; at most `threads` + 1 items are under way."""
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(max_workers=threads) as pool:
        ahead: deque[Future[Result]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(function, item))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


@contextmanager
def _one_thread_per_pass() -> Iterator[None]:
    """Make forward passes single-threaded, also in workers started inside, and exact float32."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


class _Gathered:
    """Feature rows, put by index."""

    def __init__(self, n_rows: int) -> None:
        self.values: np.ndarray | None = None
        self.filled = np.zeros(n_rows, dtype=bool)

    def put(self, rows: list[int], features: np.ndarray) -> None:
        """Put features (n, D) into their n rows."""
        if self.values is None:
            self.values = np.empty((len(self.filled), features.shape[1]), np.float32)
        self.values[rows] = features
        self.filled[rows] = True

    def complete(self, keys: pl.DataFrame, card: EncoderCard) -> np.ndarray:
        """Return all rows; a hole, a wrong dimension or a number that is not finite is an error."""
        samples = keys["sample"].to_list()
        if self.values is None:
            raise DataError(f"{card.name}: no images to extract features from")
        if not self.filled.all():
            hole = samples[int(np.argmin(self.filled))]
            raise DataError(f"{card.name}: no features came out for {hole}")
        dim = self.values.shape[1]
        if card.feature.dim not in (None, dim):
            raise ConfigError(
                f"encoder {card.name}: its features have {dim} columns, its card says "
                f"feature.dim = {card.feature.dim}"
            )
        check_finite(self.values, samples, where=card.name)
        return self.values


class _Forward:
    """The forward pass: batches (N, C, h, w) to features (N, D)."""

    def __init__(self, encoder: LoadedEncoder, compute: Compute) -> None:
        self.name = encoder.card.name
        self.device = chosen_device(compute.device)
        self.dtype = getattr(torch, encoder.card.dtype)
        self.batch_size = compute.batch_size
        self.input_min, self.input_max = float("inf"), float("-inf")
        self.seen = Lock()
        self.turn = nullcontext() if self.device.type == "cpu" else Lock()
        module = encoder.module.to(device=self.device, dtype=self.dtype)
        self.module = module.to(memory_format=torch.channels_last)

    def __call__(self, batch: torch.Tensor) -> np.ndarray:
        """Return the features (N, D) in float32; memory that runs out halves the batch."""
        self._see(batch)
        with self.turn:
            return self._in_parts(batch)

    def _see(self, batch: torch.Tensor) -> None:
        lowest, highest = (float(bound) for bound in torch.aminmax(batch))
        with self.seen:
            self.input_min = min(self.input_min, lowest)
            self.input_max = max(self.input_max, highest)

    def _in_parts(self, batch: torch.Tensor) -> np.ndarray:
        parts = []
        start = 0
        while start < len(batch):
            part = batch[start : start + self.batch_size]
            try:
                parts.append(self._features(part))
                start += len(part)
            except RuntimeError as error:
                self._halve(len(part), error)
        return np.concatenate(parts)

    def _features(self, batch: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            moved = batch.to(
                device=self.device, dtype=self.dtype, memory_format=torch.channels_last
            )
            return self.module(moved).float().cpu().numpy()

    def _halve(self, size: int, error: RuntimeError) -> None:
        if not _is_out_of_memory(error):
            raise error
        if size == 1:
            raise CrsBenchError(
                f"{self.name}: one image alone does not fit into the memory of {self.device}; "
                "use a device with more memory (the input size is part of the encoder)"
            ) from error
        self.batch_size = size // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is CUDA where there is one, else MPS, else CPU."""
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, here in present.items() if here))
    if not present.get(name, False):
        here = ", ".join(kind for kind, here in present.items() if here)
        raise ConfigError(f"extraction.device: {name} is not available here; available: {here}")
    return torch.device(name)


def write_extracted(
    features: Features,
    path: str | Path,
    *,
    encoder: LoadedEncoder,
    dataset: str,
    index_digest: str,
    perturbation_digest: str | None = None,
) -> None:
    """Write features with everything that they depend on in the metadata."""
    card = encoder.card
    identity = (card_digest(card), encoder.weights_digest, dataset, index_digest)
    metadata = {
        "encoder": card.name,
        "dataset": dataset,
        "features_digest": digest("features", *identity, perturbation_digest),
        "weights_digest": encoder.weights_digest,
        "transform_digest": transform_digest(card),
        "index_digest": index_digest,
        "dtype": features.dtype,
        "input_min": repr(features.input_min),
        "input_max": repr(features.input_max),
    }
    if perturbation_digest is not None:
        metadata["perturbation_digest"] = perturbation_digest
    write_features(features.keys, features.values, path=path, metadata=metadata)
