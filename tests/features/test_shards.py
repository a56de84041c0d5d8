"""Shards: rows come back from files, and a killed job goes on where it stopped."""

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from test_extraction import CARDS, SEVERITIES, ChannelMeans, encoder_of

from crsbench.encoders.weights import load_encoder, write_weights
from crsbench.errors import DataError
from crsbench.features import shards as shards_module
from crsbench.features.extraction import (
    Compute,
    Origin,
    extract_clean,
    write_depths,
    write_extracted,
)
from crsbench.features.perturbed import extract_perturbed
from crsbench.features.shards import Shards, shards_beside
from crsbench.files import read_metadata
from crsbench.manifest import perturbation_manifest
from crsbench.perturbed_cache import PerturbedCache

N_IMAGES = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i in range(N_IMAGES):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def index():
    return pl.DataFrame({"sample": list("abcdefg"), "path": [f"{i}.png" for i in range(N_IMAGES)]})


@pytest.fixture(scope="module")
def manifest(folder, index):
    return perturbation_manifest(
        index, dataset="toy", root=folder, perturbations=list(SEVERITIES), severities=SEVERITIES,
        max_side_px=24, threads=1,
    )  # fmt: skip


class Mortal(ChannelMeans):
    """Counts images, and dies before one batch."""

    def __init__(self, dies_at: int | None = None) -> None:
        super().__init__()
        self.n_images, self.n_passes, self.dies_at = 0, 0, dies_at

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.n_passes == self.dies_at:
            raise KeyboardInterrupt
        self.n_passes += 1
        self.n_images += len(batch)
        return super().forward(batch)


def extract(kind, module, index, manifest, folder, table, *, threads=1, params=None):
    """Do what a job does, up to its end or its death."""
    encoder = encoder_of(module)
    origin = Origin(encoder, "toy", "i", "p" if kind == "perturbed" else None)
    options = {"root": folder, "max_side_px": 24, "compute": Compute(2, threads, "cpu")}
    progress: list[int] = []
    with shards_beside(table, origin.features_digest, params or {"code": "c"}) as shards:
        options |= {"shards": shards, "progress": progress.append}
        if kind == "clean":
            features = extract_clean(encoder, index, **options)
        else:
            features = extract_perturbed(
                encoder, index, manifest, dataset="toy", severities=SEVERITIES, **options
            )
        write_extracted(features, table, origin=origin)
    assert sum(progress) == N_IMAGES


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "rows_per_shard", "dies_at", "lost"),
    # passes see two images: one of them for two clean images, two for the three conditions of one
    [("clean", 2, 2, 3), ("clean", 4, 1, 7), ("perturbed", 6, 5, 15)],
)
def test_a_killed_job_goes_on_with_the_first_unfinished_shard_and_writes_the_same_bytes(
    kind, rows_per_shard, dies_at, lost, threads, index, manifest, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards_module, "ROWS_PER_SHARD", rows_per_shard)
    whole, resumed = tmp_path / "whole" / "t.parquet", tmp_path / "resumed" / "t.parquet"
    extract(kind, Mortal(), index, manifest, folder, whole)
    with pytest.raises(KeyboardInterrupt):
        extract(kind, Mortal(dies_at), index, manifest, folder, resumed)
    assert not resumed.exists()
    second = Mortal()
    extract(kind, second, index, manifest, folder, resumed, threads=threads)
    assert second.n_images == lost
    assert resumed.read_bytes() == whole.read_bytes()
    assert [path.name for path in resumed.parent.iterdir()] == ["t.parquet"]


def test_shards_hold_the_same_rows_as_one_shard_would(
    index, manifest, folder, tmp_path, monkeypatch
):
    for kind in ("clean", "perturbed"):
        once, often = tmp_path / f"{kind}_once.parquet", tmp_path / f"{kind}_often.parquet"
        extract(kind, ChannelMeans(), index, manifest, folder, once)
        with monkeypatch.context() as patch:
            patch.setattr(shards_module, "ROWS_PER_SHARD", 6)
            extract(kind, ChannelMeans(), index, manifest, folder, often)
        assert pl.read_parquet(once).equals(pl.read_parquet(often))
        digests = {read_metadata(path)["content_digest"] for path in (once, often)}
        assert len(digests) == 1


def test_shards_of_other_params_are_removed_and_never_taken_up(
    index, manifest, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards_module, "ROWS_PER_SHARD", 2)
    table = tmp_path / "t.parquet"
    with pytest.raises(KeyboardInterrupt):
        extract("clean", Mortal(3), index, manifest, folder, table)
    (left,) = tmp_path.iterdir()
    assert len(list(left.glob("*.safetensors"))) == 3
    again = Mortal()
    extract("clean", again, index, manifest, folder, table, params={"code": "other"})
    assert again.n_images == N_IMAGES
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_shards_of_another_table_are_left_alone(tmp_path):
    with pytest.raises(KeyError), shards_beside(tmp_path / "clean.parquet", "f", {}):
        raise KeyError
    with shards_beside(tmp_path / "perturbed.parquet", "f", {}):
        pass
    assert [path.name[:13] for path in tmp_path.iterdir()] == [".clean-shards"]


@pytest.mark.parametrize(("n_images", "n_conditions"), [(11, 1), (7, 3), (1, 15), (64, 2)])
def test_any_slice_of_rows_comes_back(n_images, n_conditions, tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "ROWS_PER_SHARD", 12)
    store = Shards(tmp_path, n_images, n_conditions)
    assert [i for span in store.spans for i in span] == list(range(n_images))
    assert max(len(span) for span in store.spans) * n_conditions <= max(12, n_conditions)
    values = np.random.default_rng(0).random((n_conditions, n_images, 5), dtype=np.float32)
    for number, span in enumerate(store.spans):
        part = values[:, span.start : span.stop]
        store.write(number, {"features": part}, lowest=-number, highest=float(number))
    assert store.missing() == []
    rows, flat = store.rows("features"), values.reshape(-1, 5)
    assert (rows.shape, rows.dtype) == (flat.shape, np.float32)
    for start in range(len(flat) + 1):
        for stop in (start, start + 1, start + 7, len(flat), len(flat) + 3):
            assert np.array_equal(rows[start:stop], flat[start:stop])
    last = len(store.spans) - 1
    assert store.input_range() == (-last, last)


def test_a_full_size_shard_is_a_multiple_of_the_usual_batch_sizes():
    for n_conditions in (1, 15):
        images = len(Shards(None, 100_000, n_conditions).spans[0])
        assert all(images % max(1, size // n_conditions) == 0 for size in (16, 32, 64, 128))
        assert images * n_conditions <= shards_module.ROWS_PER_SHARD < 2 * images * n_conditions


def test_a_shard_that_holds_other_images_is_refused(tmp_path):
    store = Shards(tmp_path, 3, 1)
    store.write(0, {"features": np.ones((1, 2, 4), np.float32)}, lowest=0, highest=1)
    with pytest.raises(DataError, match=r"000000\.safetensors: holds \(1, 2, 4\) features"):
        store.rows("features")


def test_depth_features_come_out_of_the_same_pass_and_leave_the_feature_as_it_is(
    index, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards_module, "ROWS_PER_SHARD", 4)
    card = CARDS["tiny_vit"]
    write_weights(card, tmp_path / "weights.safetensors")
    encoder = load_encoder(card, tmp_path / "weights.safetensors")
    origin = Origin(encoder, "toy", "i")
    options = {"root": folder, "max_side_px": 24, "compute": Compute(2, 2, "cpu")}
    for depths in ((), card.depth_indices):
        (tmp_path / f"shards{len(depths)}").mkdir()
        shards = tmp_path / f"shards{len(depths)}"
        found = extract_clean(encoder, index, shards=shards, depth_indices=depths, **options)
        write_extracted(found, tmp_path / f"clean{len(depths)}.parquet", origin=origin)
        path = tmp_path / f"depth{len(depths)}.parquet"
        write_depths(found, path, origin=origin)
    assert (tmp_path / "clean0.parquet").read_bytes() == (tmp_path / "clean4.parquet").read_bytes()
    assert pl.read_parquet(tmp_path / "depth0.parquet").equals(index.select("sample"))
    table = pl.read_parquet(tmp_path / "depth4.parquet")
    assert table.columns == ["sample", "depth_25", "depth_50", "depth_75"]
    metadata = read_metadata(tmp_path / "depth4.parquet")
    assert metadata["depth_indices"] == "1 2 3 5"
    assert metadata["depths"] == "depth_25 depth_50 depth_75"
    encoder.module.blocks = encoder.module.blocks[:3]
    (tmp_path / "cut").mkdir()
    half = extract_clean(encoder, index, shards=tmp_path / "cut", **options).values[:]
    assert np.array_equal(table["depth_50"].to_numpy(), half)


@pytest.mark.parametrize("kind", ["clean", "perturbed"])
def test_every_image_is_decoded_once(kind, index, manifest, folder, tmp_path, monkeypatch):
    import crsbench.features.extraction as clean
    import crsbench.features.perturbed as perturbed

    decoded: list[str] = []
    decode = clean.canonical_image

    def counted(path, **options):
        decoded.append(path.name)
        return decode(path, **options)

    for module in (clean, perturbed):
        monkeypatch.setattr(module, "canonical_image", counted)
    extract(kind, ChannelMeans(), index, manifest, folder, tmp_path / "t.parquet", threads=2)
    assert sorted(decoded) == index["path"].to_list()


def test_a_cache_of_perturbed_images_spares_the_decode_and_changes_no_bit(
    index, manifest, folder, tmp_path, monkeypatch
):
    import crsbench.features.perturbed as perturbed

    encoder = encoder_of(ChannelMeans())
    options = {"dataset": "toy", "severities": SEVERITIES, "root": folder, "max_side_px": 24,
               "compute": Compute(4, 2, "cpu")}  # fmt: skip
    cache = PerturbedCache(tmp_path / "cache")
    tables = []
    for name, kept in (("without", None), ("first", cache), ("second", cache)):
        if name == "second":
            monkeypatch.setattr(perturbed, "canonical_image", None)
        (tmp_path / name).mkdir()
        found = extract_perturbed(
            encoder, index, manifest, shards=tmp_path / name, cache=kept, **options
        )
        tables.append(found.values[:])
    assert np.array_equal(tables[0], tables[1])
    assert np.array_equal(tables[0], tables[2])
    assert len(list((tmp_path / "cache").rglob("*.zst"))) == N_IMAGES


class TooFew(ChannelMeans):
    """Returns one row less than it was given images."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch)[1:]


def test_a_module_that_loses_an_image_is_an_error(index, manifest, folder, tmp_path):
    with pytest.raises(DataError, match="1 rows of features came out for 2 images"):
        extract("clean", TooFew(), index, manifest, folder, tmp_path / "t.parquet")
