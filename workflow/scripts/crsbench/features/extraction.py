"""Feature extraction: images in, one row of float32 features per image and condition out.

Every image is read and decoded once per job. Rows are written by index, so that neither workers
nor batches can reorder or repeat them. Batch size and device are means only: in float32 a feature
moves by less than `BATCH_TOLERANCE` of the matrix's largest value. The number of threads changes
nothing at all: each of them takes whole batches, and a forward pass on the CPU uses one. Finished
features wait in shards, from which a killed job goes on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
import torch

from crsbench.digests import digest
from crsbench.encoders.cards import EncoderCard, card_digest, input_px, transform_digest
from crsbench.encoders.transforms import Transform, build_transform
from crsbench.encoders.weights import LoadedEncoder
from crsbench.errors import ConfigError, DataError
from crsbench.features.forward import Forward, one_thread_per_pass
from crsbench.features.shards import Shards
from crsbench.features.table import (
    DEPTHS,
    Rows,
    check_finite,
    write_depth_features,
    write_features,
)
from crsbench.images import canonical_image

#: Largest change of a float32 feature with the batch size, relative to the largest absolute value.
BATCH_TOLERANCE = 1e-4

Progress = Callable[[int], object]
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
        Features (N, D), float32, read in slices.
    depths
        The same at `DEPTHS`, where they were asked for.
    depth_indices
        The zero-based blocks of `depths`, and that of the feature itself.
    input_min, input_max
        Smallest and largest number that entered the encoder.
    dtype
        Floating-point type of the forward pass.
    """

    keys: pl.DataFrame
    values: Rows
    depths: dict[str, Rows]
    depth_indices: tuple[int, ...]
    input_min: float
    input_max: float
    dtype: str


def extract_clean(
    encoder: LoadedEncoder,
    index: pl.DataFrame,
    *,
    root: str | Path,
    max_side_px: int,
    shards: str | Path,
    compute: Compute,
    depth_indices: Sequence[int] = (),
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
    shards
        Folder for finished features, as `crsbench.features.shards.shards_beside` yields it; what
        lies there is taken up. The features are read from there as long as it exists.
    compute
        Batch size, threads, device.
    depth_indices
        Zero-based blocks at 25, 50, 75 and 100 % of the depth, if depth features are wanted.
    progress
        Called with the number of images that have been finished since the last call.

    Raises
    ------
    DataError
        An image cannot be decoded, or a feature is not finite.
    """

    def prepare(path: str) -> Iterator[np.ndarray]:
        yield canonical_image(Path(root) / path, max_side_px=max_side_px)

    return extract(
        encoder,
        index.select("sample"),
        index["path"].to_list(),
        prepare,
        shards=Path(shards),
        compute=compute,
        depth_indices=depth_indices,
        progress=progress,
    )


def extract(
    encoder: LoadedEncoder,
    keys: pl.DataFrame,
    images: Sequence[str],
    prepare: Callable[[str], Iterable[np.ndarray]],
    *,
    shards: Path,
    compute: Compute,
    depth_indices: Sequence[int] = (),
    progress: Progress,
) -> Features:
    """Compute features batch by batch and gather them by row, shard by shard.

    Parameters
    ----------
    encoder, compute, depth_indices, progress
        As for `extract_clean`.
    keys
        What each row of features belongs to: by condition, then by image.
    images
        What finds each image (its path or sample).
    prepare
        Makes the pixels (H, W, 3) of an image, one array for each condition.
    shards
        Folder for finished features.
    """
    card = encoder.card
    if not images:
        raise DataError(f"{card.name}: no images to extract features from")
    store = Shards(shards, n_images=len(images), n_conditions=keys.height // len(images))
    columns = (*DEPTHS, "features") if depth_indices else ("features",)
    missing = store.missing()
    progress(len(images) - sum(len(store.spans[number]) for number in missing))
    batches = _batches(store, missing, compute.batch_size)
    transform = build_transform(card.transform)
    with one_thread_per_pass():
        forward = Forward(
            encoder,
            depth_indices=depth_indices,
            batch_size=compute.batch_size,
            device=compute.device,
        )

        def run(batch: _Batch) -> _Output:
            pictures = chain.from_iterable(prepare(images[i]) for i in batch.images)
            n = len(batch.images) * store.n_conditions
            tensors = transformed(pictures, transform, n=n, side_px=input_px(card))
            lowest, highest = (float(bound) for bound in torch.aminmax(tensors))
            return _Output(forward(tensors), lowest, highest)

        results = _side_by_side(run, batches, threads=compute.threads)
        shard = None
        for batch, output in zip(batches, results, strict=True):
            shard = shard or _Shard(store.spans[batch.shard], store.n_conditions)
            shard.put(batch.images, output)
            if batch.images.stop == shard.span.stop:
                arrays = shard.complete(columns, keys["sample"][: len(images)].to_list(), card)
                store.write(batch.shard, arrays, lowest=shard.lowest, highest=shard.highest)
                shard = None
            progress(len(batch.images))
    rows: dict[str, Rows] = {name: store.rows(name) for name in columns}
    values, blocks = rows.pop("features"), tuple(depth_indices)
    return Features(keys, values, rows, blocks, *store.input_range(), card.dtype)


class _Batch(NamedTuple):
    """Images of one shard that go through the encoder together."""

    shard: int
    images: range


class _Output(NamedTuple):
    """Features (K, N, D) at K depths, and the range of what entered the encoder."""

    features: np.ndarray
    lowest: float
    highest: float


def transformed(
    pictures: Iterable[np.ndarray], transform: Transform, *, n: int, side_px: int
) -> torch.Tensor:
    """Return n pictures (H, W, 3) as one batch (n, 3, h, w), float32, channels last in memory.

    They are taken one by one, and each is transformed in its place: a copy would cost more than
    the transform. NumPy allocates the batch, because it asks for huge pages.
    """
    batch = np.empty((n, side_px, side_px, 3), np.float32)
    for pixels, place in zip(pictures, batch, strict=True):
        transform(pixels, out=place)
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def _batches(store: Shards, missing: Sequence[int], batch_size: int) -> list[_Batch]:
    n = max(1, batch_size // store.n_conditions)
    spans = [(number, store.spans[number]) for number in missing]
    return [
        _Batch(number, span[i : i + n]) for number, span in spans for i in range(0, len(span), n)
    ]


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


class _Shard:
    """Feature rows of a run of images, put by index."""

    def __init__(self, span: range, n_conditions: int) -> None:
        self.span, self.n_conditions = span, n_conditions
        self.values: np.ndarray | None = None
        self.filled = np.zeros(len(span), dtype=bool)
        self.lowest, self.highest = float("inf"), float("-inf")

    def put(self, images: range, output: _Output) -> None:
        """Put the features (K, n x conditions, D) of n images into their places."""
        n_depths, n_rows, dim = output.features.shape
        if n_rows != len(images) * self.n_conditions:
            raise DataError(
                f"{n_rows} rows of features came out for {len(images) * self.n_conditions} images"
            )
        if self.values is None:
            shape = (n_depths, self.n_conditions, len(self.span), dim)
            self.values = np.empty(shape, np.float32)
        places = slice(images.start - self.span.start, images.stop - self.span.start)
        by_image = output.features.reshape(n_depths, len(images), self.n_conditions, dim)
        self.values[:, :, places] = by_image.transpose(0, 2, 1, 3)
        self.filled[places] = True
        self.lowest = min(self.lowest, output.lowest)
        self.highest = max(self.highest, output.highest)

    def complete(
        self, columns: Sequence[str], samples: Sequence[str], card: EncoderCard
    ) -> dict[str, np.ndarray]:
        """Return the columns (conditions, images, D).

        A hole, a wrong dimension or a number that is not finite is an error.
        """
        own = list(samples[self.span.start : self.span.stop])
        if self.values is None or not self.filled.all():
            hole = own[int(np.argmin(self.filled))]
            raise DataError(f"{card.name}: no features came out for {hole}")
        dim = self.values.shape[-1]
        if card.feature.dim not in (None, dim):
            raise ConfigError(
                f"encoder {card.name}: its features have {dim} columns, its card says "
                f"feature.dim = {card.feature.dim}"
            )
        for name, values in zip(columns, self.values, strict=True):
            where = card.name if name == "features" else f"{card.name}, {name}"
            check_finite(values.reshape(-1, dim), own * self.n_conditions, where=where)
        return dict(zip(columns, self.values, strict=True))


@dataclass(frozen=True)
class Origin:
    """What features are made from.

    Parameters
    ----------
    encoder
        A loaded encoder.
    dataset
        Name of the dataset.
    index_digest, perturbation_digest
        Digests of its index and, for perturbed images, of their manifest.
    """

    encoder: LoadedEncoder
    dataset: str
    index_digest: str
    perturbation_digest: str | None = None

    @property
    def features_digest(self) -> str:
        """Digest of everything named here."""
        card, weights = card_digest(self.encoder.card), self.encoder.weights_digest
        identity = (card, weights, self.dataset, self.index_digest, self.perturbation_digest)
        return digest("features", *identity)

    def metadata(self) -> dict[str, str]:
        """Return what a table of these features says of where they come from."""
        metadata = {
            "encoder": self.encoder.card.name,
            "dataset": self.dataset,
            "features_digest": self.features_digest,
            "weights_digest": self.encoder.weights_digest,
            "transform_digest": transform_digest(self.encoder.card),
            "index_digest": self.index_digest,
        }
        if self.perturbation_digest is not None:
            metadata["perturbation_digest"] = self.perturbation_digest
        return metadata


def write_extracted(features: Features, path: str | Path, *, origin: Origin) -> None:
    """Write features with everything that they depend on in the metadata."""
    metadata = origin.metadata() | _seen(features)
    write_features(features.keys, features.values, path=path, metadata=metadata)


def write_depths(features: Features, path: str | Path, *, origin: Origin) -> None:
    """Write the depth features; without any, the table has the samples alone."""
    blocks = {"depth_indices": " ".join(map(str, features.depth_indices))}
    metadata = origin.metadata() | _seen(features) | blocks
    write_depth_features(features.keys, features.depths, path=path, metadata=metadata)


def _seen(features: Features) -> dict[str, str]:
    return {
        "dtype": features.dtype,
        "input_min": repr(features.input_min),
        "input_max": repr(features.input_max),
    }
