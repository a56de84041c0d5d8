"""The votes of neighbours against scikit-learn and a loop, and what cannot be voted on."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.neighbors import KNeighborsClassifier

from crsbench.probes.base import Subset
from crsbench.probes.knn import PROBE, fit_knn, score_knn

K = 5


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def draw(rng, n, d=6):
    return rng.standard_normal((n, d)).astype(np.float32)


def fit(features, labels, subsets, *, task="multiclass", n_classes, k=K):
    return fit_knn(
        features, labels, subsets, task=task, n_classes=n_classes, threads=1, n_neighbours=k
    )


def shares_by_loop(features, labels, rows, queries, *, n_classes, k=K):
    """Count the votes of the k nearest rows, sorted by float64 distance and place."""
    shares = np.zeros((len(queries), n_classes))
    for query, share in zip(queries.astype(np.float64), shares, strict=True):
        distance = {row: np.square(features[row].astype(float) - query).sum() for row in rows}
        for row in sorted(rows, key=lambda row: (distance[row], row))[:k]:
            share[labels[row]] += 1 / k
    return shares


def draw_subsets(rng, n):
    subsets = [
        Subset(fraction, seed, np.sort(rng.permutation(n)[: int(fraction * n)]))
        for fraction in (0.1, 0.5)
        for seed in (0, 1)
    ]
    return [*subsets, Subset(1.0, 0, np.arange(n))]


@pytest.mark.parametrize("k", [1, 5, 8])
def test_shares_of_votes_are_those_of_scikit_learn(rng, k):
    features, labels, queries = draw(rng, 400), rng.integers(4, size=400), draw(rng, 100)
    subsets = draw_subsets(rng, 400)
    logits = score_knn(fit(features, labels, subsets, n_classes=4, k=k), queries, threads=1)
    for subset, scored in zip(subsets, logits, strict=True):
        oracle = KNeighborsClassifier(k, algorithm="brute")
        oracle.fit(features[subset.rows].astype(np.float64), labels[subset.rows])
        expected = oracle.predict_proba(queries.astype(np.float64))
        np.testing.assert_allclose(softmax(scored, axis=1), expected, atol=1e-12)


def test_ties_and_copies_vote_by_their_place_in_the_train_split(rng):
    features = np.round(draw(rng, 300, 2))
    labels, queries = rng.integers(3, size=300), np.round(draw(rng, 60, 2))
    subsets = draw_subsets(rng, 300)
    logits = score_knn(fit(features, labels, subsets, n_classes=3), queries, threads=1)
    for subset, scored in zip(subsets, logits, strict=True):
        expected = shares_by_loop(features, labels, subset.rows, queries, n_classes=3)
        np.testing.assert_allclose(softmax(scored, axis=1), expected, atol=1e-12)


def test_a_class_without_a_vote_has_probability_zero(rng):
    features, labels = draw(rng, 50), rng.integers(2, size=50)
    (fitted,) = fit(features, labels, [Subset(1.0, 0, np.arange(50))], n_classes=4)
    scored = fitted.logits(features)
    assert scored.shape == (50, 4)
    assert np.isneginf(scored[:, 2:]).all()


def label_shares_by_loop(features, truth, rows, queries):
    columns = []
    for column in truth.T:
        own = [row for row in rows if not np.isnan(column[row])]
        labels = np.where(np.isnan(column), 0, column).astype(int)
        columns.append(shares_by_loop(features, labels, own, queries, n_classes=2)[:, 1])
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("masked", [0.0, 0.2, 0.8])
def test_each_label_asks_its_own_unmasked_rows(rng, masked):
    features, queries = draw(rng, 200), draw(rng, 40)
    truth = rng.integers(2, size=(200, 3)).astype(float)
    truth[rng.random(truth.shape) < masked] = np.nan
    subsets = draw_subsets(rng, 200)[2:]
    fits = fit(features, truth, subsets, task="multilabel", n_classes=3)
    for subset, scored in zip(subsets, score_knn(fits, queries, threads=1), strict=True):
        expected = label_shares_by_loop(features, truth, subset.rows, queries)
        np.testing.assert_allclose(expit(scored), expected, atol=1e-12)


def test_a_region_of_masked_rows_is_searched_beyond(rng):
    features = np.arange(100, dtype=np.float32)[:, None]
    truth = np.repeat([[0.0, 1.0]], 100, axis=0)
    truth[::2] = 1 - truth[::2]
    truth[:60, 0] = np.nan
    (fitted,) = fit(
        features, truth, [Subset(1.0, 0, np.arange(100))], task="multilabel", n_classes=2
    )
    # Nearest to 0 among the unmasked of the first label: 60 to 64, of which 60, 62, 64 positive.
    assert expit(fitted.logits(np.zeros((1, 1), np.float32))[0, 0]) == pytest.approx(3 / 5)


def test_labels_that_cannot_be_voted_on_have_no_logit(rng):
    features = draw(rng, 30)
    truth = np.tile([[0.0, 1.0, 0.0]], (30, 1))
    truth[::2, 0] = 1
    truth[3, 2] = 1
    truth[4:, 2] = np.nan
    (fitted,) = fit(
        features, truth, [Subset(1.0, 0, np.arange(30))], task="multilabel", n_classes=3
    )
    scored = fitted.logits(features)
    assert fitted.status == "completed"
    assert not np.isnan(scored[:, 0]).any()
    assert np.isnan(scored[:, 1:]).all(), "one value only; four unmasked rows"


def test_fewer_rows_than_neighbours_are_a_typed_failure(rng):
    features, labels = draw(rng, 40), np.arange(40) % 2
    few, enough = fit(
        features, labels, [Subset(0.1, 0, np.arange(4)), Subset(0.2, 0, np.arange(5))], n_classes=2
    )
    assert (few.status, few.n_train) == ("failed", 4)
    assert few.reason == "4 training rows, but 5 are to vote"
    assert enough.status == "completed"
    assert enough.reason == "probabilities are shares of 5 votes: 6 levels"
    truth = np.where(np.arange(40)[:, None] < 4, labels[:, None], np.nan)
    (masked,) = fit(
        features, truth, [Subset(1.0, 0, np.arange(40))], task="multilabel", n_classes=1
    )
    assert (masked.status, masked.reason) == ("failed", "4 training rows, but 5 are to vote")


def test_one_class_only_is_typed(rng):
    (fitted,) = fit(draw(rng, 9), np.ones(9, int), [Subset(1.0, 0, np.arange(9))], n_classes=3)
    assert fitted.status == "single_class"
    assert "both values" in fitted.reason


def test_there_is_nothing_to_optimise_and_no_seed(rng):
    (fitted,) = fit(draw(rng, 9), np.arange(9) % 3, [Subset(1.0, 0, np.arange(9))], n_classes=3)
    assert not PROBE.seed_matters
    assert fitted.iterations == 0
    assert np.isnan([fitted.gradient_norm, fitted.objective]).all()


def test_threads_and_the_company_of_other_fits_change_no_bit(rng):
    features, labels, queries = draw(rng, 300), rng.integers(3, size=300), draw(rng, 50)
    fits = fit(features, labels, draw_subsets(rng, 300), n_classes=3)
    together = score_knn(fits, queries, threads=1)
    np.testing.assert_array_equal(together, score_knn(fits, queries, threads=3))
    np.testing.assert_array_equal(together, [fitted.logits(queries) for fitted in fits])
