"""Extraction on phantom pictures with micro encoders."""

import dataclasses
import itertools
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import LoadedEncoder, load_encoder, write_weights
from crsbench.errors import ConfigError, CrsBenchError, DataError
from crsbench.features.extraction import (
    BATCH_TOLERANCE,
    Compute,
    Origin,
    extract_clean,
    write_extracted,
)
from crsbench.features.forward import chosen_device
from crsbench.features.perturbed import extract_perturbed
from crsbench.features.table import read_features
from crsbench.files import read_metadata
from crsbench.images import canonical_image
from crsbench.manifest import manifest_rows

CARDS = load_cards([Path(__file__).parents[2] / "config" / "encoders.yaml"])
N_IMAGES = 5
SEVERITIES = {"blur": (1.0, 4.0), "contrast": (0.5,)}
CONDITIONS = [("blur", 1), ("blur", 2), ("contrast", 1)]
ONE = Compute(batch_size=4, threads=1, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for i in range(N_IMAGES):
        pixels = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((90 + i, 120)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def index() -> pl.DataFrame:
    names = [str(i) for i in range(N_IMAGES)]
    return pl.DataFrame({"sample": names, "path": [f"{name}.png" for name in names]})


@pytest.fixture(scope="module")
def manifest(folder, index) -> pl.DataFrame:
    rows = itertools.chain.from_iterable(
        manifest_rows(
            canonical_image(folder / path, max_side_px=100),
            dataset="phantom",
            sample=sample,
            perturbations=list(SEVERITIES),
            severities=SEVERITIES,
        )
        for sample, path in index.head(4).iter_rows()
    )
    return pl.DataFrame(list(rows), schema_overrides={"seed": pl.UInt64})


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, LoadedEncoder]:
    folder = tmp_path_factory.mktemp("weights")
    loaded = {}
    for name in ("tiny_vit", "tiny_resnet", "tiny_statistics"):
        write_weights(CARDS[name], folder / f"{name}.safetensors")
        loaded[name] = load_encoder(CARDS[name], folder / f"{name}.safetensors")
    return loaded


def encoder_of(module: torch.nn.Module, **changes: object) -> LoadedEncoder:
    entry = {**CARDS["tiny_vit"].model_dump(), "feature": {}, **changes}
    return LoadedEncoder(EncoderCard.model_validate(entry), module, "digest")


class ChannelMeans(torch.nn.Module):
    """A stand-in for an encoder: the mean of each channel."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.mean(dim=(2, 3))


def loaded(features):
    """Take the rows out of shards that are about to go."""
    depths = {name: rows[:] for name, rows in features.depths.items()}
    return dataclasses.replace(features, values=features.values[:], depths=depths)


def clean(encoder, index, folder, compute=ONE, **options):
    with tempfile.TemporaryDirectory() as shards:
        options = {"shards": shards, "max_side_px": 100, "root": folder, **options}
        return loaded(extract_clean(encoder, index, compute=compute, **options))


def perturbed(encoder, index, manifest, folder, compute=ONE, **changes):
    with tempfile.TemporaryDirectory() as shards:
        options = {"dataset": "phantom", "severities": SEVERITIES, "max_side_px": 100,
                   "shards": shards, "root": folder, **changes}  # fmt: skip
        return loaded(extract_perturbed(encoder, index, manifest, compute=compute, **options))


def test_rows_are_the_encoders_output_of_each_transformed_image(encoders, index, folder):
    found = clean(encoders["tiny_resnet"], index, folder)
    transform = build_transform(CARDS["tiny_resnet"].transform)
    for row, path in enumerate(index["path"]):
        tensor = transform(canonical_image(folder / path, max_side_px=100))
        with torch.inference_mode():
            expected = encoders["tiny_resnet"].module(tensor[None])[0].numpy()
        np.testing.assert_allclose(found.values[row], expected, rtol=1e-4, atol=1e-5)
    assert found.keys["sample"].to_list() == index["sample"].to_list()
    assert found.dtype == "float32"


@pytest.mark.parametrize("name", ["tiny_vit", "tiny_resnet", "tiny_statistics"])
@pytest.mark.parametrize("batch_size", [2, 3, 64])
def test_the_batch_size_moves_features_within_the_stated_tolerance(
    name, batch_size, encoders, index, folder
):
    one = clean(encoders[name], index, folder, Compute(1, 1, "cpu")).values
    many = clean(encoders[name], index, folder, Compute(batch_size, 1, "cpu")).values
    assert np.abs(many - one).max() <= BATCH_TOLERANCE * np.abs(one).max()


@pytest.mark.acceptance
def test_a_batch_of_64_moves_the_features_of_a_full_vit_within_the_stated_tolerance(tmp_path):
    random = {"weights": {"kind": "random", "seed": 0}}
    card = EncoderCard.model_validate({**CARDS["vit_b16"].model_dump(), **random})
    write_weights(card, tmp_path / "weights.safetensors")
    encoder = load_encoder(card, tmp_path / "weights.safetensors")
    rng = np.random.default_rng(0)
    for i in range(64):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((224, 224)).save(tmp_path / f"{i}.png")
    names = [f"{i}.png" for i in range(64)]
    index = pl.DataFrame({"sample": names, "path": names})
    one, many = (
        clean(encoder, index, tmp_path, Compute(n, 1, "cpu"), depth_indices=card.depth_indices)
        for n in (1, 64)
    )
    for single, batched in (
        (one.values, many.values),
        *zip(one.depths.values(), many.depths.values(), strict=True),
    ):
        assert np.abs(batched - single).max() <= BATCH_TOLERANCE * np.abs(single).max()


@pytest.mark.parametrize("name", ["tiny_vit", "tiny_resnet"])
def test_the_number_of_threads_changes_no_bit(name, encoders, index, folder):
    one = clean(encoders[name], index, folder, Compute(2, 1, "cpu")).values
    three = clean(encoders[name], index, folder, Compute(2, 3, "cpu")).values
    assert np.array_equal(one, three)


def test_the_order_of_the_index_only_orders_the_rows(encoders, index, folder):
    forwards = clean(encoders["tiny_resnet"], index, folder, Compute(1, 1, "cpu")).values
    backwards = clean(encoders["tiny_resnet"], index.reverse(), folder, Compute(1, 1, "cpu")).values
    assert np.array_equal(forwards, backwards[::-1])


def test_the_range_of_the_tensors_that_entered_is_recorded(index, folder):
    plain = encoder_of(ChannelMeans())
    found = clean(plain, index, folder)
    transform = build_transform(plain.card.transform)
    tensors = [transform(canonical_image(folder / path, max_side_px=100)) for path in index["path"]]
    assert found.input_min == min(float(tensor.min()) for tensor in tensors)
    assert found.input_max == max(float(tensor.max()) for tensor in tensors)
    assert -1 <= found.input_min < found.input_max <= 1


def test_progress_counts_every_image_once(encoders, index, manifest, folder):
    counts: list[int] = []
    clean(encoders["tiny_statistics"], index, folder, progress=counts.append)
    assert sum(counts) == N_IMAGES
    counts.clear()
    perturbed(encoders["tiny_statistics"], index, manifest, folder, progress=counts.append)
    assert sum(counts) == 4


def test_perturbed_rows_are_ordered_by_condition_then_sample(encoders, index, manifest, folder):
    found = perturbed(encoders["tiny_statistics"], index, manifest, folder)
    expected = [(s, *c) for c in CONDITIONS for s in manifest["sample"].unique(maintain_order=True)]
    assert found.keys.rows() == expected
    assert found.values.shape == (12, 87)


@pytest.mark.parametrize(
    "compute", [Compute(1, 1, "cpu"), Compute(5, 2, "cpu"), Compute(64, 2, "auto")]
)
def test_every_condition_has_the_features_of_its_own_pixels(compute, index, manifest, folder):
    from crsbench.perturbations import perturbed_images

    encoder = encoder_of(ChannelMeans())
    found = perturbed(encoder, index, manifest, folder, compute)
    rows = dict(zip(found.keys.rows(), found.values, strict=True))
    transform = build_transform(encoder.card.transform)
    for sample, path in index.head(4).iter_rows():
        image = canonical_image(folder / path, max_side_px=100)
        for name, severity, _, pixels in perturbed_images(
            image,
            dataset="phantom",
            sample=sample,
            perturbations=list(SEVERITIES),
            severities=SEVERITIES,
        ):
            expected = transform(pixels).mean(dim=(1, 2)).numpy()
            np.testing.assert_allclose(rows[sample, name, severity], expected, atol=1e-5)


def test_other_pixels_than_the_manifests_are_a_failure_that_names_the_libraries(
    encoders, index, manifest, folder
):
    forged = manifest.with_columns(
        pl.when((pl.col("sample") == "2") & (pl.col("perturbation") == "contrast"))
        .then(pl.lit("0" * 64))
        .otherwise("pixels_sha256")
        .alias("pixels_sha256")
    )
    with pytest.raises(DataError, match=r"phantom/2, contrast severity 1.*Pillow"):
        perturbed(encoders["tiny_statistics"], index, forged, folder)


def test_pixels_of_another_dataset_name_are_still_checked(index, manifest, folder):
    noisy = {"rician": (0.1,)}
    rows = manifest_rows(
        canonical_image(folder / "0.png", max_side_px=100),
        dataset="phantom",
        sample="0",
        perturbations=["rician"],
        severities=noisy,
    )
    encoder = encoder_of(ChannelMeans())
    frame = pl.DataFrame(rows, schema_overrides={"seed": pl.UInt64})
    perturbed(encoder, index, frame, folder, severities=noisy)
    with pytest.raises(DataError, match="rician severity 1"):
        perturbed(encoder, index, frame, folder, severities=noisy, dataset="other")


def test_an_image_of_the_manifest_without_an_index_row_is_refused(
    encoders, index, manifest, folder
):
    with pytest.raises(DataError, match="3 is in the perturbation manifest but not in the index"):
        perturbed(encoders["tiny_statistics"], index[:3], manifest, folder)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_that_cannot_be_decoded_stops_the_job_and_is_named(
    threads, encoders, index, folder
):
    broken = index.with_columns(path=pl.col("path").replace("3.png", "absent.png"))
    with pytest.raises(DataError, match=r"absent\.png"):
        clean(encoders["tiny_statistics"], broken, folder, Compute(2, threads, "cpu"))


class Spoilt(ChannelMeans):
    """Gives NaN for one image of a batch."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        features = super().forward(batch)
        features[0, 1] = torch.nan
        return features


def test_nan_features_are_refused_with_their_samples(index, folder):
    with pytest.raises(DataError, match="tiny_vit: features of 0, 4 are not finite"):
        clean(encoder_of(Spoilt()), index, folder)


def test_another_dimension_than_the_cards_is_refused(index, folder):
    with pytest.raises(ConfigError, match=r"3 columns, its card says feature\.dim = 64"):
        clean(encoder_of(ChannelMeans(), feature={"pool": "cls", "dim": 64}), index, folder)


def test_no_images_are_an_error(index, folder):
    with pytest.raises(DataError, match="no images to extract features from"):
        clean(encoder_of(ChannelMeans()), index[:0], folder)


class SmallMemory(ChannelMeans):
    """Runs out of memory above a number of images, and notes the batches that it saw."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.seen: list[tuple[int, ...]] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(batch.shape))
        if len(batch) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(batch)


def test_out_of_memory_halves_the_batch_and_never_the_image(index, folder):
    small = SmallMemory(limit=1)
    found = clean(encoder_of(small), index, folder, Compute(4, 1, "cpu"))
    expected = clean(encoder_of(ChannelMeans()), index, folder, Compute(1, 1, "cpu"))
    np.testing.assert_allclose(found.values, expected.values, atol=1e-6)
    assert [shape[0] for shape in small.seen] == [4, 2, 1, 1, 1, 1, 1]
    assert {shape[1:] for shape in small.seen} == {(3, 64, 64)}


def test_one_image_that_does_not_fit_is_a_clear_error(index, folder):
    with pytest.raises(CrsBenchError, match="one image alone does not fit"):
        clean(encoder_of(SmallMemory(limit=0)), index, folder)


def test_any_other_runtime_error_is_not_taken_for_memory(index, folder):
    class Wrong(torch.nn.Module):
        def forward(self, _batch):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        clean(encoder_of(Wrong()), index, folder)


def test_lower_precision_is_used_where_the_card_says_so(index, folder):
    class TypeOfInput(torch.nn.Module):
        def forward(self, batch):
            assert batch.dtype == torch.bfloat16
            return batch.mean(dim=(2, 3))

    found = clean(encoder_of(TypeOfInput(), dtype="bfloat16"), index, folder)
    assert found.dtype == "bfloat16"
    assert found.values.dtype == np.float32


def test_a_device_that_is_not_here_is_refused():
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(ConfigError, match=f"{absent} is not available here; available: .*cpu"):
        chosen_device(absent)
    assert chosen_device("cpu").type == "cpu"


def test_the_table_says_what_its_features_depend_on(encoders, index, manifest, folder, tmp_path):
    encoder = encoders["tiny_vit"]
    path = tmp_path / "features.parquet"
    features = perturbed(encoder, index, manifest, folder)
    write_extracted(features, path, origin=Origin(encoder, "phantom", "i", "p"))
    metadata = read_metadata(path)
    assert metadata["encoder"] == "tiny_vit"
    assert metadata["weights_digest"] == encoder.weights_digest
    assert (metadata["index_digest"], metadata["perturbation_digest"]) == ("i", "p")
    assert float(metadata["input_min"]) == features.input_min
    assert {"dataset", "features_digest", "transform_digest", "dtype", "dim"} <= set(metadata)
    _, values = read_features(path, samples=["1"], condition=("blur", 2))
    expected = features.keys.with_row_index().filter(sample="1", perturbation="blur", severity=2)
    assert np.array_equal(values[0], features.values[expected["index"].item()])
