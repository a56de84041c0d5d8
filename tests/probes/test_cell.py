"""All fits of a cell: each distinct one once, every set scored, failures typed."""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import numpy as np
import polars as pl
import pytest

from crsbench.errors import DataError
from crsbench.features.table import read_features, write_features
from crsbench.files import read_parquet, write_parquet
from crsbench.probes.base import Subset, score_each
from crsbench.probes.cell import (
    FITS,
    EvaluatedSet,
    TrainingSide,
    fit_cell,
    predictions_schema,
    read_evaluated_sets,
    score_cell,
)
from crsbench.probes.logistic import fit_logistic

FRACTIONS = (0.25, 1.0)
SEEDS = (3, 4)
N_TRAIN, N_TEST, N_FEATURES, N_CLASSES = 24, 6, 5, 3


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture
def train(rng):
    features = rng.normal(3, 2, size=(N_TRAIN, N_FEATURES)).astype(np.float32)
    names = [f"train{i:02d}" for i in range(N_TRAIN)]
    return TrainingSide(names, features, np.arange(N_TRAIN) % N_CLASSES)


@pytest.fixture
def evaluated(rng):
    def one(target, side, perturbation, severity):
        features = rng.normal(3, 2, size=(N_TEST, N_FEATURES)).astype(np.float32)
        names = [f"{target}-{side}{i}" for i in range(N_TEST)]
        return EvaluatedSet(target, side, perturbation, severity, names, features)

    return [
        one("own", "calibration", "clean", 0),
        one("own", "test", "clean", 0),
        one("own", "test", "blur", 1),
        one("other", "test", "clean", 0),
    ]


def draw_subsamples(train, *, shared=False):
    """A quarter of the train split a seed, the rest at 100 %."""
    tables = []
    for seed in SEEDS:
        first = 0 if shared else 3 * (seed - SEEDS[0])
        small = set(range(first, first + 6))
        fraction = [0.25 if row in small else 1.0 for row in range(N_TRAIN)]
        tables.append(
            pl.DataFrame(
                {"seed": [seed] * N_TRAIN, "sample": train.samples, "label_fraction": fraction}
            )
        )
    return pl.concat(tables)


@dataclass(frozen=True)
class Recorded:
    """A fit that scores with the mean of its features."""

    status: str = "converged"
    reason: str | None = None
    n_train: int = 0
    iterations: int = 1
    gradient_norm: float = 1e-7
    objective: float = 0.5

    def logits(self, features):
        return np.repeat(features.mean(axis=1, keepdims=True), N_CLASSES, axis=1)


class RecordingProbe:
    """Keeps what it was fitted on."""

    def __init__(self, **outcome):
        self.calls = []
        self.outcome = outcome

    def __call__(self, features, labels, subsets):
        self.calls += [(features[subset.rows], labels[subset.rows]) for subset in subsets]
        return [Recorded(n_train=len(subset.rows), **self.outcome) for subset in subsets]


def run(train, evaluated, fit, *, subsamples=None, seed_matters=False):
    """Fit and score copies: a cell standardises what it is given in place."""
    fits = fit_cell(
        replace(train, features=train.features.copy()),
        fit=fit,
        seed_matters=seed_matters,
        subsamples=draw_subsamples(train) if subsamples is None else subsamples,
        label_fractions=FRACTIONS,
        seeds=SEEDS,
    )
    copies = (replace(item, features=item.features.copy()) for item in evaluated)
    return score_cell(fits, copies, score=partial(score_each, threads=1), n_classes=N_CLASSES)


logistic = partial(
    fit_logistic,
    task="multiclass",
    n_classes=N_CLASSES,
    threads=1,
    tolerance=1e-6,
    max_iterations=1000,
)


def test_all_seeds_share_the_fit_at_full_labels(train, evaluated):
    probe = RecordingProbe()
    _, fits = run(train, evaluated, probe)
    assert [len(features) for features, _ in probe.calls] == [6, 6, 24]
    assert fits.select("label_fraction", "seed", "fit_seed", "n_train").rows() == [
        (0.25, 3, 3, 6),
        (0.25, 4, 4, 6),
        (1.0, 3, 3, 24),
        (1.0, 4, 3, 24),
    ]


def test_equal_subsamples_of_two_seeds_are_fitted_once(train, evaluated):
    probe = RecordingProbe()
    predictions, fits = run(train, evaluated, probe, subsamples=draw_subsamples(train, shared=True))
    assert len(probe.calls) == 2
    assert fits["fit_seed"].to_list() == [3, 3, 3, 3]
    assert predictions["seed"].unique().to_list() == [3]


def test_where_the_seed_matters_equal_subsamples_are_two_fits(train, evaluated):
    probe = RecordingProbe()
    _, fits = run(train, evaluated, probe, seed_matters=True)
    assert len(probe.calls) == 4
    assert fits["fit_seed"].to_list() == [3, 4, 3, 4]


def test_the_digest_of_logits_tells_fits_apart_and_is_shared_by_seeds(train, evaluated):
    _, fits = run(train, evaluated, logistic)
    one, two, *whole = fits["logits_digest"]
    assert len({one, two, *whole}) == 3
    _, again = run(train, evaluated, logistic)
    assert again.equals(fits)
    evaluated[3].features[0, 0] += 1
    _, changed = run(train, evaluated, logistic)
    assert not set(changed["logits_digest"]) & set(fits["logits_digest"])


def test_a_fit_is_given_the_rows_of_its_subsample_in_the_order_of_the_train_split(train, evaluated):
    probe = RecordingProbe()
    run(train, evaluated, probe, subsamples=draw_subsamples(train).reverse())
    whole = (train.features - train.features.mean(axis=0)) / train.features.std(axis=0)
    for (features, labels), rows in zip(
        probe.calls, (range(6), range(3, 9), range(24)), strict=True
    ):
        np.testing.assert_allclose(features, whole[list(rows)], atol=1e-5)
        np.testing.assert_array_equal(labels, train.labels[list(rows)])


def test_every_distinct_fit_scores_every_set_once_in_order(train, evaluated):
    predictions, _ = run(train, evaluated, logistic)
    assert predictions.schema == predictions_schema(N_CLASSES)
    keys = predictions.select(pl.exclude("logits")).rows()
    expected = [
        (fraction, seed, item.target, item.side, item.perturbation, item.severity, sample)
        for fraction, seed in [(0.25, 3), (0.25, 4), (1.0, 3)]
        for item in evaluated
        for sample in item.samples
    ]
    assert keys == expected


def test_logits_are_those_of_the_standardised_features(train, evaluated):
    predictions, _ = run(train, evaluated, logistic)
    mean, scale = (part(train.features.astype(float), axis=0) for part in (np.mean, np.std))
    whole = Subset(1.0, 3, np.arange(N_TRAIN))
    (direct,) = logistic((train.features - mean) / scale, train.labels, [whole])
    expected = direct.logits((evaluated[2].features - mean) / scale)
    stored = predictions.filter(pl.col("label_fraction") == 1.0, pl.col("perturbation") == "blur")[
        "logits"
    ].to_numpy()
    assert stored.dtype == np.float32
    np.testing.assert_allclose(stored, expected, atol=1e-5)


def test_a_constant_feature_column_changes_nothing(train, evaluated):
    plain, _ = run(train, evaluated, logistic)

    def widened(item):
        constant = np.full((len(item.features), 1), 7, dtype=np.float32)
        return replace(item, features=np.hstack([item.features, constant]))

    wide, fits = run(widened(train), [widened(item) for item in evaluated], logistic)
    assert set(fits["status"]) == {"converged"}
    np.testing.assert_allclose(wide["logits"].to_numpy(), plain["logits"].to_numpy(), atol=1e-4)


def test_the_order_of_the_train_split_does_not_matter(train, evaluated, rng):
    order = rng.permutation(N_TRAIN)
    shuffled = TrainingSide(
        [train.samples[i] for i in order], train.features[order], train.labels[order]
    )
    subsamples = draw_subsamples(train)
    one, _ = run(train, evaluated, logistic, subsamples=subsamples)
    two, _ = run(shuffled, evaluated, logistic, subsamples=subsamples)
    np.testing.assert_allclose(one["logits"].to_numpy(), two["logits"].to_numpy(), atol=1e-4)


def test_a_failed_fit_is_recorded_without_logits_and_the_others_go_on(train, evaluated):
    def fit(features, labels, subsets):
        failure = Recorded("failed", "why", gradient_norm=np.nan, objective=np.nan)
        return [failure if len(subset.rows) == 6 else Recorded() for subset in subsets]

    predictions, fits = run(train, evaluated, fit)
    assert fits.schema == FITS
    assert fits["status"].to_list() == ["failed", "failed", "converged", "converged"]
    assert fits["reason"].to_list() == ["why", "why", None, None]
    assert fits["gradient_norm"].to_list() == [None, None, 1e-7, 1e-7]
    assert predictions["label_fraction"].unique().to_list() == [1.0]


def test_tables_of_failures_only_keep_their_schema(train, evaluated):
    predictions, _ = run(train, evaluated, RecordingProbe(status="single_class", reason="why"))
    assert predictions.is_empty()
    assert predictions.schema == predictions_schema(N_CLASSES)


def test_predictions_survive_a_file_with_infinite_and_missing_logits(train, evaluated, tmp_path):
    class Extreme(Recorded):
        def logits(self, features):
            return np.tile([0.5, -np.inf, np.nan], (len(features), 1))

    predictions, _ = run(train, evaluated, lambda *given: [Extreme() for _ in given[2]])
    write_parquet(predictions, tmp_path / "p.parquet")
    back = read_parquet(tmp_path / "p.parquet")
    assert back.schema == predictions.schema
    np.testing.assert_array_equal(back["logits"][0].to_numpy(), [0.5, -np.inf, np.nan])


SETTINGS = {
    "logistic": {"tolerance": 1e-6, "max_iterations": 1000},
    "mlp": {
        "hidden": 8, "learning_rate": 1e-3, "weight_decay": 1e-4, "batch_size": 8, "epochs": 2
    },
    "knn": {"n_neighbours": 5},
}  # fmt: skip


def write_cell(folder, features, *, held_out):
    """Write the tables of a cell, where `held_out` makes all features but the train split's."""
    folder.mkdir()
    names = {side: [f"{side}{i:02d}" for i in range(N_TRAIN)] for side in features}
    conditions = {"perturbation": ["blur"] * N_TRAIN, "severity": [1] * N_TRAIN}
    sides = ("train", "calibration", "test")
    for file, parts, extra in (
        ("clean", sides, {}),
        ("perturbed", ("blurred",), conditions),
        ("shift", ("shifted",), {}),
    ):
        samples = [name for part in parts for name in names["test" if part == "blurred" else part]]
        values = [features[part] if part == "train" else held_out(features[part]) for part in parts]
        keys = pl.DataFrame({"sample": samples, **extra})
        write_features(keys, np.concatenate(values), path=folder / f"{file}.parquet", metadata={})
    return names


def fit_from_files(folder, names, probe, labels, settings):
    """Fit and score a cell from its tables, as the workflow does."""
    samples, features = read_features(folder / "clean.parquet", samples=names["train"])
    fits = fit_cell(
        TrainingSide(samples, features, labels),
        fit=partial(probe.fit, task="multiclass", n_classes=N_CLASSES, threads=1, **settings),
        seed_matters=probe.seed_matters,
        subsamples=draw_subsamples(TrainingSide(samples, features, labels)),
        label_fractions=FRACTIONS,
        seeds=SEEDS,
    )
    evaluated = read_evaluated_sets(
        "own",
        clean=folder / "clean.parquet",
        perturbed=folder / "perturbed.parquet",
        samples={side: names[side] for side in ("calibration", "test")},
        conditions=[("clean", 0), ("blur", 1)],
        shift={"other": (folder / "shift.parquet", names["shifted"])},
    )
    score = partial(probe.score, threads=1)
    _, table = score_cell(fits, evaluated, score=score, n_classes=N_CLASSES)
    return fits, score(list(fits.scoring.values()), features), table


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_is_fitted_on_features_outside_the_train_split(name, rng, tmp_path):
    probe = import_module(f"crsbench.probes.{name}").PROBE
    parts = ("train", "calibration", "test", "blurred", "shifted")
    shape = N_TRAIN, N_FEATURES
    features = {part: rng.normal(3, 2, size=shape).astype(np.float32) for part in parts}
    labels = np.arange(N_TRAIN) % N_CLASSES
    outcomes = []
    for folder, held_out in (("one", lambda x: x), ("two", lambda x: 50 - 7 * x[::-1])):
        names = write_cell(tmp_path / folder, features, held_out=held_out)
        outcomes.append(fit_from_files(tmp_path / folder, names, probe, labels, SETTINGS[name]))
    (one, logits, scored), (two, altered_logits, altered) = outcomes
    assert one.standardiser.mean.tobytes() == two.standardiser.mean.tobytes()
    assert one.standardiser.scale.tobytes() == two.standardiser.scale.tobytes()
    assert one.table.equals(two.table)
    assert logits.tobytes() == altered_logits.tobytes()
    assert not set(scored["logits_digest"]) & set(altered["logits_digest"])  # it was seen to score


def test_evaluated_sets_are_read_one_at_a_time_in_the_asked_order(tmp_path, rng):
    def write(name, keys):
        features = rng.standard_normal((keys.height, N_FEATURES)).astype(np.float32)
        write_features(keys, features, path=tmp_path / name, metadata={})
        return features

    clean = write("clean.parquet", pl.DataFrame({"sample": ["a", "b", "c", "d"]}))
    perturbed_keys = pl.DataFrame(
        {
            "sample": ["c", "d", "c", "d"],
            "perturbation": ["blur", "blur", "fov", "fov"],
            "severity": [1, 1, 3, 3],
        }
    )
    perturbed = write("perturbed.parquet", perturbed_keys)
    shifted = write("shift.parquet", pl.DataFrame({"sample": ["x", "y"]}))
    sets = list(
        read_evaluated_sets(
            "own",
            clean=tmp_path / "clean.parquet",
            perturbed=tmp_path / "perturbed.parquet",
            samples={"calibration": ["b"], "test": ["d", "c"]},
            conditions=[("clean", 0), ("blur", 1), ("fov", 3)],
            shift={"other": (tmp_path / "shift.parquet", ["y"])},
        )
    )
    assert [str(item) for item in sets] == [
        "own, calibration, clean severity 0",
        "own, test, clean severity 0",
        "own, test, blur severity 1",
        "own, test, fov severity 3",
        "other, test, clean severity 0",
    ]
    assert [list(item.samples) for item in sets] == [["b"], *[["d", "c"]] * 3, ["y"]]
    expected = [clean[[1]], clean[[3, 2]], perturbed[[1, 0]], perturbed[[3, 2]], shifted[[1]]]
    for item, features in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(item.features, features)


def test_features_that_are_not_finite_name_their_sample(train, evaluated):
    evaluated[2].features[1, 0] = np.nan
    with pytest.raises(
        DataError, match=r"own, test, blur severity 1: features of own-test1 are not"
    ):
        run(train, evaluated, logistic)
    train.features[2, 0] = np.inf
    with pytest.raises(DataError, match="train split: features of train02 are not finite"):
        run(train, evaluated, logistic)


def test_features_of_another_width_are_refused(train, evaluated):
    narrow = replace(evaluated[1], features=evaluated[1].features[:, :3])
    with pytest.raises(DataError, match="3 features a sample, but the train split has 5"):
        run(train, [narrow], logistic)


def test_a_subsample_outside_the_train_split_is_refused(train, evaluated):
    foreign = pl.DataFrame({"seed": [4], "sample": ["elsewhere"], "label_fraction": [0.25]})
    subsamples = pl.concat([draw_subsamples(train), foreign])
    with pytest.raises(DataError, match="seed 4: elsewhere is not in the train split"):
        run(train, evaluated, logistic, subsamples=subsamples)


def test_a_seed_without_rows_is_refused(train, evaluated):
    subsamples = draw_subsamples(train).filter(pl.col("seed") == 3)
    with pytest.raises(DataError, match=r"no training rows for seed 4 at label fraction 0\.25"):
        run(train, evaluated, logistic, subsamples=subsamples)
