"""What a run will still take: disk, memory, GPU hours, cores. Estimates, from stated assumptions.

Counted is what the plan needs and the store does not have yet. Sizes are those of the numbers
themselves, before compression. Times assume the rates below, not measured on the machine at
hand; nothing but ``crsbench doctor`` reads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from crsbench.config import SEVERITIES
from crsbench.datasets.definitions import DatasetDefinition, load_adapter, missing_data
from crsbench.encoders.cards import Cost, EncoderCard, input_px
from crsbench.plan import Plan

#: [assumed] Sustained 10^9 operations a second of one data-centre GPU, by type of the forward pass:
#: three quarters of an A100's 19.5 TFLOP/s in float32, a third of its 312 in 16 bits.
GPU_GFLOPS = {"float32": 15_000.0, "bfloat16": 100_000.0, "float16": 100_000.0}
#: [assumed] Images a second that a GPU takes at most: launching and copying bound small nets.
MOST_IMAGES_PER_S = 2000.0
#: Milliseconds of one core for an image of 1,024 px, as in benchmarks/extraction.md: decode and
#: transform; perturb, digest and transform.
CLEAN_MS = 20.0
PERTURBED_MS = 25.0
#: Where a card has no cost or dimension: what is usual in its class.
TYPICAL_COST = {
    "small": Cost(gflops=1, parameters_m=5),
    "medium": Cost(gflops=35, parameters_m=86),
    "large": Cost(gflops=400, parameters_m=350),
    "huge": Cost(gflops=5500, parameters_m=420),
}
TYPICAL_DIM = {"small": 512, "medium": 768, "large": 1024, "huge": 2560}
BYTES = 4
GB = 1e9
#: Depths of which features are kept beside the last one.
N_DEPTHS = 3
#: [assumed] Python with torch, in bytes.
PROCESS_BYTES = 3e9


@dataclass(frozen=True)
class Work:
    """What one encoder still has to do.

    Attributes
    ----------
    encoder
        Its name.
    n_clean, n_perturbed
        Images that go through it.
    gpu_hours
        Time of its forward passes.
    core_hours
        Time of reading, perturbing and transforming its images, on one core.
    cores_per_gpu
        Cores that keep one GPU busy.
    bytes_clean, bytes_depth, bytes_perturbed, bytes_weights
        Size of its files in the store.
    memory
        Bytes that an extraction job holds; 0 where none is left.
    """

    encoder: str
    n_clean: int
    n_perturbed: int
    gpu_hours: float
    core_hours: float
    cores_per_gpu: float
    bytes_clean: float
    bytes_depth: float
    bytes_perturbed: float
    bytes_weights: float
    memory: float


def count_images(definition: DatasetDefinition, store: str) -> int | None:
    """Return how many images a dataset has: of its index, else stated, else of its label files.

    None where nothing says so.
    """
    index = Path(store) / "data" / definition.name / "index.parquet"
    if index.is_file():
        return int(pl.scan_parquet(index).select(pl.len()).collect().item())
    if definition.phantom is not None:
        return definition.phantom.n_images
    stated = definition.stated_images or definition.n_images
    if stated is not None:
        return stated
    if missing_data(definition) is None:
        return load_adapter(definition).read_listing(definition).samples.height
    return None


def remaining_work(plan: Plan, n_images: dict[str, int]) -> list[Work]:
    """Return what each encoder of a plan still has to do.

    Parameters
    ----------
    plan
        The plan of the run.
    n_images
        Number of images by dataset; a dataset that is not among them counts nothing.
    """
    return [_work(plan, card, n_images) for card in plan.encoders.values()]


def _work(plan: Plan, card: EncoderCard, n_images: dict[str, int]) -> Work:
    store = Path(plan.settings.store)
    features = store / "features" / card.name
    per_case = len(plan.settings.perturbations) * len(SEVERITIES)
    n_clean = n_perturbed = n_jobs = 0
    for encoder, dataset in plan.cells:
        if encoder != card.name:
            continue
        for part in (dataset, *plan.shift[dataset]):
            if not (features / part / "clean.parquet").is_file():
                n_jobs += 1
                n_clean += n_images.get(part, 0)
        if not (features / dataset / "perturbed.parquet").is_file():
            n_jobs += 1
            n_perturbed += per_case * round(plan.settings.split.test * n_images.get(dataset, 0))
    cost = card.cost or TYPICAL_COST[card.size_class]
    row = BYTES * (card.feature.dim or TYPICAL_DIM[card.size_class])
    weights = BYTES * cost.parameters_m * 1e6
    rate = min(GPU_GFLOPS[card.dtype] / cost.gflops, MOST_IMAGES_PER_S)
    core_s = (n_clean * CLEAN_MS + n_perturbed * PERTURBED_MS) / 1000
    depths = N_DEPTHS if plan.settings.depth_features and card.depth_indices else 0
    done = (store / "weights" / f"{card.name}.safetensors").is_file()
    return Work(
        encoder=card.name,
        n_clean=n_clean,
        n_perturbed=n_perturbed,
        gpu_hours=(n_clean + n_perturbed) / rate / 3600,
        core_hours=core_s / 3600,
        cores_per_gpu=rate * PERTURBED_MS / 1000,
        bytes_clean=row * n_clean,
        bytes_depth=row * n_clean * depths,
        bytes_perturbed=row * n_perturbed,
        bytes_weights=0 if done else weights,
        memory=PROCESS_BYTES + 2 * weights + _batch_bytes(plan, card) if n_jobs else 0,
    )


def _batch_bytes(plan: Plan, card: EncoderCard) -> float:
    """Return the size of the images and inputs that the threads of a job have in hand."""
    image = 3 * plan.settings.max_side_px**2
    tensor = 3 * BYTES * input_px(card) ** 2
    extraction = plan.settings.extraction
    return float(extraction.threads * extraction.batch_size * (image + tensor))


def logit_bytes(plan: Plan, n_images: dict[str, int]) -> float:
    """Return the size of the predictions that are still to be made."""
    settings = plan.settings
    n_fits = sum(1 if share == 1.0 else len(settings.seeds) for share in settings.label_fractions)
    conditions = 1 + len(settings.perturbations) * len(SEVERITIES)
    return BYTES * n_fits * sum(
        len(plan.datasets[dataset].classes)
        * (
            n_images.get(dataset, 0)
            * (settings.split.calibration + settings.split.test * conditions)
            + sum(n_images.get(target, 0) for target in plan.shift[dataset])
        )
        for _, _, dataset in _unfitted(plan)
    )  # fmt: skip


def _unfitted(plan: Plan) -> Iterator[tuple[str, str, str]]:
    predictions = Path(plan.settings.store) / "predictions"
    for probe in plan.settings.probes:
        for encoder, dataset in plan.cells:
            if not (predictions / probe / encoder / f"{dataset}.parquet").is_file():
                yield probe, encoder, dataset
