"""Feature tables on disk, what is wrong with one, and standardisation."""

import tracemalloc

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import StandardScaler

from crsbench.errors import DataError
from crsbench.features import table
from crsbench.features.table import (
    Standardiser,
    content_digest,
    flags,
    read_features,
    write_depth_features,
    write_features,
)
from crsbench.files import read_metadata

SAMPLES = ["a", "b", "c", "d"]


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture
def path(tmp_path, features):
    path = tmp_path / "clean.parquet"
    keys = pl.DataFrame({"sample": SAMPLES})
    write_features(keys, features, path=path, metadata={"encoder": "x"})
    return path


def test_what_is_written_is_read_to_the_last_bit(path, features):
    samples, values = read_features(path)
    assert samples == SAMPLES
    assert values.dtype == np.float32
    assert np.array_equal(values, features)


def test_rows_come_in_the_order_that_is_asked_for(path, features):
    samples, values = read_features(path, samples=["d", "a"])
    assert samples == ["d", "a"]
    assert np.array_equal(values, features[[3, 0]])


def test_polars_reads_the_same_fixed_size_lists(path, features):
    frame = pl.read_parquet(path)
    assert frame.schema["features"] == pl.Array(pl.Float32, 3)
    assert np.array_equal(frame["features"].to_numpy(), features)


def test_row_groups_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "VALUES_PER_ROW_GROUP", 30)
    path = tmp_path / "f.parquet"
    keys = pl.DataFrame({"sample": [str(i) for i in range(25)]})
    write_features(keys, np.ones((25, 3), np.float32), path=path, metadata={})
    assert pq.ParquetFile(path).num_row_groups == 3
    assert read_features(path)[1].shape == (25, 3)


def test_depth_features_are_columns_of_one_table(tmp_path, features):
    keys = pl.DataFrame({"sample": SAMPLES})
    depths = {"depth_25": features, "depth_50": np.ones_like(features), "depth_75": -features}
    path = tmp_path / "depth.parquet"
    write_depth_features(keys, depths, path=path, metadata={"encoder": "x"})
    frame = pl.read_parquet(path)
    assert frame.columns == ["sample", *depths]
    for name, values in depths.items():
        assert frame.schema[name] == pl.Array(pl.Float32, 3)
        assert np.array_equal(frame[name].to_numpy(), values)
    metadata = read_metadata(path)
    assert metadata["flags"] == "depth_50: collapsed: all 4 rows are equal"
    assert (metadata["encoder"], metadata["depths"]) == ("x", " ".join(depths))


def test_a_depth_table_of_an_encoder_without_depths_has_its_samples(tmp_path):
    keys = pl.DataFrame({"sample": SAMPLES})
    write_depth_features(keys, {}, path=tmp_path / "depth.parquet", metadata={})
    assert pl.read_parquet(tmp_path / "depth.parquet").equals(keys)


def test_blocks_of_any_size_give_the_same_digest_and_flags(features, monkeypatch):
    values = np.vstack([features, features])
    values[:, 1] = 7
    before = content_digest(values), flags(values)
    monkeypatch.setattr(table, "VALUES_PER_ROW_GROUP", 3)
    assert (content_digest(values), flags(values)) == before
    assert before[1] == ["1 of 3 columns are constant"]


def test_metadata_hold_dimension_digest_and_flags(path):
    metadata = read_metadata(path)
    assert (metadata["encoder"], metadata["dim"], metadata["flags"]) == ("x", "3", "")
    assert len(metadata["content_digest"]) == 64


def perturbed(tmp_path, features):
    conditions = [("blur", 1), ("blur", 2), ("fov", 1)]
    rows = [(sample, *condition) for condition in conditions for sample in SAMPLES]
    keys = pl.DataFrame(rows, schema=["sample", "perturbation", "severity"], orient="row")
    path = tmp_path / "perturbed.parquet"
    values = np.concatenate([features + i for i in range(3)])
    write_features(keys, values, path=path, metadata={})
    return path


def test_one_condition_is_read_alone(tmp_path, features):
    path = perturbed(tmp_path, features)
    samples, values = read_features(path, samples=["b", "a"], condition=("blur", 2))
    assert samples == ["b", "a"]
    assert np.array_equal(values, features[[1, 0]] + 1)


def test_an_absent_condition_has_no_samples(tmp_path, features):
    with pytest.raises(DataError, match=r"blur severity 3: no features of a, b"):
        read_features(perturbed(tmp_path, features), samples=["a", "b"], condition=("blur", 3))


def test_a_perturbed_table_is_not_read_as_a_clean_one(tmp_path, features):
    with pytest.raises(DataError, match="repeated"):
        read_features(perturbed(tmp_path, features))


def test_a_hole_is_named(path):
    with pytest.raises(DataError, match=r"clean\.parquet: no features of x, y; extract them again"):
        read_features(path, samples=["a", "x", "y"])


def test_a_table_of_many_row_groups_is_read_into_one_matrix(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "VALUES_PER_ROW_GROUP", 2**16)
    rng = np.random.default_rng(4)
    names = [f"s{row:05d}" for row in range(3_000)]
    features = rng.standard_normal((3_000, 512), dtype=np.float32)
    path = tmp_path / "f.parquet"
    write_features(pl.DataFrame({"sample": names}), features, path=path, metadata={})
    order = rng.permutation(3_000)[:2_500]
    tracemalloc.start()
    samples, values = read_features(path, samples=[names[row] for row in order])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert samples == [names[row] for row in order]
    assert np.array_equal(values, features[order])
    assert peak < 1.5 * values.nbytes


def test_asking_twice_for_a_sample_is_an_error(path):
    with pytest.raises(DataError, match="samples asked for: a repeated"):
        read_features(path, samples=["a", "b", "a"])


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.parquet: no such feature table"):
        read_features(tmp_path / "absent.parquet")


def test_a_repeated_key_is_not_written(tmp_path, features):
    keys = pl.DataFrame({"sample": ["a", "b", "b", "c"]})
    with pytest.raises(DataError, match="b repeated"):
        write_features(keys, features, path=tmp_path / "f.parquet", metadata={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused_with_their_samples(tmp_path, features, bad):
    features[1, 2] = features[3, 0] = bad
    keys = pl.DataFrame({"sample": SAMPLES})
    with pytest.raises(DataError, match="features of b, d are not finite"):
        write_features(keys, features, path=tmp_path / "f.parquet", metadata={})


def test_nan_in_a_file_from_elsewhere_is_refused_on_reading(path, features):
    features[2, 0] = np.nan
    frame = pl.DataFrame({"sample": SAMPLES, "features": features})
    frame.write_parquet(path)
    with pytest.raises(DataError, match="features of c are not finite"):
        read_features(path)


@pytest.mark.parametrize("shape", [(3, 3), (4,)])
def test_features_that_do_not_match_their_keys_are_refused(tmp_path, shape):
    keys = pl.DataFrame({"sample": SAMPLES})
    with pytest.raises(ValueError, match=r"expected \(4, D\) float32"):
        write_features(keys, np.ones(shape, np.float32), path=tmp_path / "f.parquet", metadata={})


def test_a_collapsed_matrix_and_constant_columns_are_flagged(features):
    assert flags(features) == []
    features[:, 1] = 5
    assert flags(features) == ["1 of 3 columns are constant"]
    assert flags(np.ones((4, 3), np.float32)) == ["collapsed: all 4 rows are equal"]
    assert flags(np.ones((1, 3), np.float32)) == []


def test_a_collapsed_matrix_is_warned_of_when_it_is_written(tmp_path, features, caplog):
    keys = pl.DataFrame({"sample": SAMPLES})
    features[:, 1] = 5
    write_features(keys, features, path=tmp_path / "constant.parquet", metadata={})
    assert not caplog.records
    path = tmp_path / "collapsed.parquet"
    write_features(keys, np.ones((4, 3), np.float32), path=path, metadata={})
    assert caplog.messages == [f"{path}: collapsed: all 4 rows are equal"]


def test_the_content_digest_is_equal_for_bit_identical_features_only(tmp_path, features):
    keys = pl.DataFrame({"sample": SAMPLES})
    digests = []
    for number, values in enumerate([features, np.nextafter(features, 9), features.copy()]):
        write_features(keys, values, path=tmp_path / str(number), metadata={"encoder": str(number)})
        digests.append(read_metadata(tmp_path / str(number))["content_digest"])
    assert digests[0] == digests[2] != digests[1]


def standardised(standardiser, features):
    changed = features.copy()
    standardiser.apply(changed)
    return changed


def test_standardiser_agrees_with_scikit_learn_to_one_rounding():
    rng = np.random.default_rng(1)
    train = (rng.normal(size=(50, 4)) * [1, 10, 100, 1e-3] + [0, 5, -300, 1]).astype(np.float32)
    test = rng.normal(size=(7, 4)).astype(np.float32)
    expected = StandardScaler().fit(train.astype(np.float64)).transform(test.astype(np.float64))
    standardiser = Standardiser.fit(train)
    np.testing.assert_array_equal(standardised(standardiser, test), expected.astype(np.float32))
    wide = standardised(standardiser, test.astype(np.float64))
    np.testing.assert_allclose(wide, expected, rtol=1e-12)


def test_standardised_training_features_have_mean_zero_and_variance_one():
    train = np.random.default_rng(2).normal(3, 7, size=(40, 5)).astype(np.float32)
    found = standardised(Standardiser.fit(train), train.astype(np.float64))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(found.var(axis=0), 1, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e6, 65504.0])
def test_a_constant_column_is_centred_and_scaled_by_one(value):
    train = np.full((1000, 1), value, np.float32)
    standardiser = Standardiser.fit(train)
    assert standardiser.scale == 1
    assert np.all(standardised(standardiser, train) == 0)
    assert standardised(standardiser, train + np.float32(8)) == pytest.approx(8, rel=1e-5)


def test_large_columns_do_not_overflow():
    train = np.random.default_rng(3).normal(1e4, 1, size=(5000, 2)).astype(np.float32)
    assert Standardiser.fit(train).scale == pytest.approx([1, 1], rel=0.05)


def test_one_training_sample_is_enough():
    standardiser = Standardiser.fit(np.array([[1.0, 2.0]], np.float32))
    assert np.array_equal(standardiser.scale, [1, 1])


def test_no_training_sample_is_an_error():
    with pytest.raises(ValueError, match="no training features"):
        Standardiser.fit(np.empty((0, 2), np.float32))
