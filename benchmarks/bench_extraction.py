"""Speed of extraction on one thread: what an encoder waits for besides its own forward pass.

    PYTHONPATH=workflow/scripts python benchmarks/bench_extraction.py > benchmarks/extraction.md

Images: decode, fifteen perturbations and input transform of one picture, against a plain script
that decodes once and works on whole float64 arrays, with the same tensors, which is checked before
anything is timed. The digests, which the plain script does not make, are timed apart. Encoders: the
whole extraction of perturbed images (all of that, batches, forward pass, shards, table) against the
bare forward pass on batches of the same size, with random weights. Each time is the smallest CPU
time of several rounds in which the works take turns.
"""

import platform
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import torch
from PIL import Image
from scipy import ndimage
from threadpoolctl import threadpool_limits

from crsbench.encoders.cards import EncoderCard, input_px, load_cards
from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import LoadedEncoder, load_encoder, write_weights
from crsbench.features.extraction import Compute, Origin, transformed, write_extracted
from crsbench.features.perturbed import extract_perturbed
from crsbench.features.shards import shards_beside
from crsbench.images import canonical_image
from crsbench.manifest import perturbation_manifest
from crsbench.perturbations import (
    PERTURBATIONS,
    Pixels,
    library_versions,
    perturbed_images,
    pixels_sha256,
)

ROOT = Path(__file__).parents[1]
TESTS = runpy.run_path(str(ROOT / "tests" / "test_perturbations.py"))
PLAIN, SEVERITIES = TESTS["plain_perturb"], TESTS["SEVERITIES"]
PHOTOGRAPH = runpy.run_path(str(ROOT / "benchmarks" / "bench_perturbations.py"))["photograph"]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
SIZES = {"224 x 224": (224, 224), "1024 x 853": (853, 1024), "1024 x 1024": (1024, 1024)}
ENCODERS = ("vit_b16", "resnet50", "efficientnet_lite0", "untrained_vit_tiny_224")
SMALL_PX, LARGE_PX = (224, 224), (853, 1024)
N_CONDITIONS = 15
N_IMAGES = 2  # all their conditions are one batch
N_ROUNDS = {"224 x 224": 40, "1024 x 853": 5, "1024 x 1024": 5}  # short works are disturbed more
Operator = Callable[[Pixels, str, float, int], Pixels]


def fastest(*works: Callable[[], object], n_rounds: int) -> list[float]:
    """Return the smallest CPU time of each work in seconds; they take turns."""
    return np.min([[seconds(work) for work in works] for _ in range(n_rounds)], axis=0).tolist()


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ours(path: Path) -> torch.Tensor:
    """Make the batch of an image's 15 tensors as extraction does, but for the digests."""
    transform = build_transform(CARDS["vit_b16"].transform)
    return transformed(ours_one_by_one(path), transform, n=N_CONDITIONS, side_px=224)


def ours_one_by_one(path: Path) -> Iterator[Pixels]:
    """Make the 15 pictures."""
    for _, _, _, pixels in perturbed_images(
        canonical_image(path, max_side_px=1024),
        dataset="bench",
        sample="0",
        perturbations=PERTURBATIONS,
        severities=SEVERITIES,
    ):
        yield pixels


def plain(path: Path, seeds: dict[tuple[str, int], int], operator: Operator) -> torch.Tensor:
    """Make the same batch with Pillow and NumPy alone."""
    image = np.array(Image.open(path).convert("RGB"))
    batch = []
    for name in PERTURBATIONS:
        for severity, strength in enumerate(SEVERITIES[name], start=1):
            pixels = operator(image, name, strength, seeds[name, severity])
            batch.append(plain_transform(pixels))
    return torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)


def plain_but_scipys_blur(image: Pixels, name: str, strength: float, seed: int) -> Pixels:
    """Return what the plain operator returns, with SciPy's compiled filter as blur."""
    if name != "blur":
        return PLAIN(image, name, strength, seed)
    kernel = TESTS["plain_kernel"](strength * min(image.shape[:2]) / 224)
    rows = ndimage.correlate1d(image.astype(np.float64), kernel, axis=0, mode="reflect")
    blurred = ndimage.correlate1d(rows, kernel, axis=1, mode="reflect")
    return np.rint(blurred).astype(np.uint8)


def plain_transform(pixels: Pixels) -> np.ndarray:
    """Return ViT-B/16's input (224, 224, 3): squashed to 224 px, between -1 and 1."""
    small = Image.fromarray(pixels).resize((224, 224), Image.Resampling.BILINEAR)
    values = np.asarray(small, dtype=np.float32) / np.float32(255)
    return (values - np.float32(0.5)) / np.float32(0.5)


def images_table(folder: Path) -> str:
    """Return the rows of the first table."""
    seeds = {
        (name, severity): seed
        for name, severity, seed, _ in perturbed_images(
            np.zeros((1, 1, 3), np.uint8),
            dataset="bench",
            sample="0",
            perturbations=PERTURBATIONS,
            severities=SEVERITIES,
        )
    }
    rows = []
    for size, shape in SIZES.items():
        for kind in ("colour", "grey"):
            path = folder / f"{shape[0]}_{kind}.jpg"
            Image.fromarray(PHOTOGRAPH(*shape, grey=kind == "grey")).save(path, quality=95)
            times = image_times(path, seeds, n_rounds=N_ROUNDS[size])
            slow, compiled, fast, digests = (time * 1e3 for time in times)
            each = (fast + digests) / N_CONDITIONS
            rows.append(
                f"| {size}, {kind} | {slow:.0f} ({compiled:.0f}) | {fast:.0f} | {slow / fast:.1f} "
                f"({compiled / fast:.1f}) | {digests:.1f} | {each:.1f} | {each / 10:.2f} |"
            )
    return "\n".join(rows)


def image_times(path: Path, seeds: dict[tuple[str, int], int], *, n_rounds: int) -> list[float]:
    """Return seconds: plain, plain with SciPy's blur, ours, and the digests alone."""
    pictures = list(ours_one_by_one(path))
    batch = ours(path)
    for operator in (PLAIN, plain_but_scipys_blur):
        assert torch.equal(batch, plain(path, seeds, operator))
    return fastest(
        lambda: plain(path, seeds, PLAIN),
        lambda: plain(path, seeds, plain_but_scipys_blur),
        lambda: ours(path),
        lambda: [pixels_sha256(pixels) for pixels in pictures],
        n_rounds=n_rounds,
    )


def untrained(name: str, folder: Path) -> LoadedEncoder:
    """Return an encoder with random weights."""
    random = {"weights": {"kind": "random", "seed": 0}, "loader": "timm", "options": {}}
    card = EncoderCard.model_validate({**CARDS[name].model_dump(), **random})
    path = folder / f"{name}.safetensors"
    write_weights(card, path)
    return load_encoder(card, path)


def share(encoder: LoadedEncoder, shape: tuple[int, int], folder: Path) -> tuple[float, float]:
    """Return images per second of the bare forward pass and of the whole extraction."""
    names = [f"{i}.jpg" for i in range(N_IMAGES)]
    for name in names:
        Image.fromarray(PHOTOGRAPH(*shape, grey=False)).save(folder / name, quality=95)
    index = pl.DataFrame({"sample": names, "path": names})
    options = {"root": folder, "max_side_px": 1024, "severities": SEVERITIES, "dataset": "bench"}
    manifest = perturbation_manifest(index, perturbations=PERTURBATIONS, threads=1, **options)
    table = folder / "perturbed.parquet"
    side = input_px(encoder.card)
    batch = torch.randn(N_IMAGES * N_CONDITIONS, 3, side, side)
    batch = batch.to(memory_format=torch.channels_last)

    def forward() -> None:
        with torch.inference_mode():
            encoder.module(batch)

    def extraction() -> None:
        with shards_beside(table, "bench", {}) as shards:
            features = extract_perturbed(
                encoder, index, manifest, shards=shards, compute=Compute(64, 1, "cpu"), **options
            )
            write_extracted(features, table, origin=Origin(encoder, "bench", "i", "p"))

    encoder.module.to(memory_format=torch.channels_last)
    bare, whole = fastest(forward, extraction, n_rounds=5)
    return len(batch) / bare, len(batch) / whole


def encoders_table(folder: Path) -> str:
    """Return the rows of the second table."""
    rows = []
    for name in ENCODERS:
        encoder = untrained(name, folder)
        for shape in (SMALL_PX, LARGE_PX):
            bare, whole = share(encoder, shape, folder)
            size = f"{shape[1]} x {shape[0]}"
            rows.append(
                f"| {encoder.card.label}, {input_px(encoder.card)} px | {size} | {bare:.1f} "
                f"| {whole:.1f} | {whole / bare:.0%} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Print the page."""
    threadpool_limits(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, encoders = images_table(folder), encoders_table(folder)
    torch_version, processor = torch.__version__, platform.processor() or platform.machine()
    sys.stdout.write(f"""# Speed of extraction

Written by `benchmarks/bench_extraction.py` (`make bench`), which says what is timed. One thread,
CPU times; {processor}, {library_versions()}, torch {torch_version}.

## One picture: decode, 15 perturbations, transform to 224 px

| picture (JPEG) | plain, ms | ms | ratio | digests, ms | ms a condition | cores for 100 images/s |
|---|---|---|---|---|---|---|
{images}

*Plain* is a script in Pillow and NumPy that decodes once, works on whole float64 arrays, and blurs
by a loop over the taps of the separable filter; in brackets, with SciPy's compiled filter in place
of that loop. All give the same tensors, which is checked. The plain script makes no digests
(SHA-256 of the 15 pictures), so *ms* and *ratio* are without them; the last two columns are with.

## Perturbed extraction against the bare forward pass, batches of {N_IMAGES * N_CONDITIONS}

| encoder | pictures | bare, images/s | whole, images/s | share |
|---|---|---|---|---|
{encoders}
""")


if __name__ == "__main__":
    main()
