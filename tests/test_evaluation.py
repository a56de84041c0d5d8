"""Run records: every key once, each metric on its own, the right classes, typed gaps."""

from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, cohen_kappa_score, log_loss, roc_auc_score

from crsbench.errors import DataError
from crsbench.evaluation import Scorer, Scoring, evaluate_cell
from crsbench.probes.cell import FITS, predictions_schema
from crsbench.records import (
    METRICS,
    RUN_RECORD,
    Cell,
    check_complete,
    check_schema,
    enumerate_run_keys,
)
from crsbench.sides import Side

CLASSES = ("a", "b", "c")
FRACTIONS, SEEDS = (0.1, 1.0), (0, 1, 2)
CONDITIONS = [("clean", 0), ("blur", 1), ("blur", 2)]
N = 30
IDENTITY = {
    name: 0.0 if dtype == pl.Float64 else "x"
    for name, dtype in RUN_RECORD.items()
    if name in RUN_RECORD.names()[RUN_RECORD.names().index("undefined") + 1 :]
}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def scoring(
    task="multiclass", *, classes=CLASSES, dropped=(), binary_confidence="positive", n_votes=None
):
    return Scoring(
        task,
        classes,
        dropped,
        n_bins=15,
        specificity=0.9,
        binary_confidence=binary_confidence,
        n_votes=n_votes,
    )


def side(samples, labels, *, n_classes=3):
    truth = labels if labels.ndim == 2 else np.eye(n_classes)[labels]
    return Side(samples, labels, truth)


def score(logits, labels, **choices):
    of_all = side([str(row) for row in range(len(labels))], labels, n_classes=logits.shape[1])
    return Scorer(of_all, scoring(**choices)).score(logits)


def draw_classes(rng, n=N, n_classes=3):
    labels = np.arange(n) % n_classes
    return 2 * np.eye(n_classes)[labels] + rng.standard_normal((n, n_classes)), labels


def draw_labels(rng, n=60, n_labels=3):
    logits = rng.standard_normal((n, n_labels)) * 2
    labels = (rng.random((n, n_labels)) < expit(logits)).astype(float)
    labels[rng.random((n, n_labels)) < 0.2] = np.nan
    return logits, labels


# --- One evaluation ---------------------------------------------------------------------------


def test_multiclass_metrics_agree_with_scikit_learn(rng):
    logits, labels = draw_classes(rng)
    p = softmax(logits, axis=1)
    scores = score(logits, labels)
    assert scores.values["macro_auroc"] == pytest.approx(
        roc_auc_score(labels, p, multi_class="ovr"), abs=1e-12
    )
    aps = [average_precision_score(labels == c, p[:, c]) for c in range(3)]
    assert scores.values["macro_auprc"] == pytest.approx(np.mean(aps), abs=1e-12)
    assert scores.values["nll"] == pytest.approx(log_loss(labels, p), abs=1e-12)
    assert scores.values["accuracy"] == np.mean(p.argmax(axis=1) == labels)
    assert scores.values["mean_confidence"] == pytest.approx(p.max(axis=1).mean())
    assert scores.undefined == []


def test_multilabel_metrics_are_macro_averages_over_unmasked_samples(rng):
    logits, labels = draw_labels(rng)
    scores = score(logits, labels, task="multilabel")
    p, used = expit(logits), ~np.isnan(labels)
    by_label = {
        "macro_auroc": [roc_auc_score(labels[u, k], p[u, k]) for k, u in enumerate(used.T)],
        "nll": [log_loss(labels[u, k], p[u, k]) for k, u in enumerate(used.T)],
        "brier": [np.mean((labels[u, k] - p[u, k]) ** 2) for k, u in enumerate(used.T)],
        "accuracy": [np.mean((p[u, k] > 0.5) == labels[u, k]) for k, u in enumerate(used.T)],
        "mean_confidence": [
            np.mean(np.maximum(p[u, k], 1 - p[u, k])) for k, u in enumerate(used.T)
        ],
    }
    for name, values in by_label.items():
        assert scores.values[name] == pytest.approx(np.mean(values), abs=1e-12), name
    np.testing.assert_allclose(scores.class_auroc, by_label["macro_auroc"], atol=1e-12)


@pytest.mark.parametrize(
    ("task", "absent"),
    [
        ("multiclass", {"ece_max_confidence", "qwk", "ordinal_mae"}),
        ("ordinal", {"ece_max_confidence"}),
        ("multilabel", {"qwk", "ordinal_mae"}),
    ],
)
def test_each_task_has_the_metrics_that_apply_to_it(rng, task, absent):
    logits, labels = draw_labels(rng) if task == "multilabel" else draw_classes(rng)
    scores = score(logits, labels, task=task)
    assert set(scores.values) == set(METRICS) - absent


def draw_votes(rng, n=400, n_classes=5, n_votes=5):
    """Votes with many ties, and their logits as a file holds them."""
    labels = rng.integers(n_classes, size=n)
    preferred = 0.4 * np.eye(n_classes)[labels] + 0.6 / n_classes
    votes = np.array([rng.multinomial(n_votes, p) for p in preferred])
    with np.errstate(divide="ignore"):
        return votes, np.log(votes).astype(np.float32), labels


def test_equal_votes_tie_and_lie_in_one_bin_whatever_the_other_classes_got(rng):
    votes, logits, labels = draw_votes(rng)
    scores = score(logits, labels, classes=tuple("abcde"), n_votes=5)
    aurocs = [roc_auc_score(labels == c, votes[:, c]) for c in range(5)]
    np.testing.assert_allclose(scores.class_auroc, aurocs, atol=1e-12)
    top, right = votes.max(axis=1), votes.argmax(axis=1) == labels
    gaps = [abs(np.sum(level / 5 - right[top == level])) for level in range(1, 6)]
    assert scores.values["ece"] == pytest.approx(sum(gaps) / len(labels), abs=1e-12)
    assert scores.values["brier"] == pytest.approx(
        np.mean(((votes / 5 - np.eye(5)[labels]) ** 2).sum(axis=1)) / 2, abs=1e-12
    )
    assert scores.undefined == ["nll: a class that occurs has probability zero"]


def test_rounding_of_logits_would_break_ties_if_votes_were_not_known(rng):
    votes, logits, labels = draw_votes(rng)
    scores = score(logits, labels, classes=tuple("abcde"))
    aurocs = [roc_auc_score(labels == c, votes[:, c]) for c in range(5)]
    assert np.abs(scores.class_auroc - aurocs).max() > 1e-3


def test_votes_on_labels_may_be_unanimous(rng):
    votes = rng.integers(6, size=(200, 3))
    labels = (rng.random((200, 3)) < 0.1 + 0.16 * votes).astype(float)
    with np.errstate(divide="ignore"):
        logits = (np.log(votes) - np.log(5 - votes)).astype(np.float32)
    scores = score(logits, labels, task="multilabel", n_votes=5)
    aurocs = [roc_auc_score(labels[:, c], votes[:, c]) for c in range(3)]
    np.testing.assert_allclose(scores.class_auroc, aurocs, atol=1e-12)
    brier = np.mean((votes / 5 - labels) ** 2)
    assert scores.values["brier"] == pytest.approx(brier, abs=1e-12)
    assert [reason.partition(":")[0] for reason in scores.undefined] == ["nll"]


def test_qwk_counts_all_grades_of_the_ordinal_task(rng):
    logits, labels = rng.standard_normal((20, 5)), np.repeat([0, 1, 4, 4], 5)
    scores = score(logits, labels, task="ordinal", classes=tuple("01234"))
    expected = cohen_kappa_score(
        labels, logits.argmax(axis=1), weights="quadratic", labels=range(5)
    )
    assert scores.values["qwk"] == pytest.approx(expected, abs=1e-12)


def test_one_undefined_metric_costs_no_other(rng):
    logits = rng.standard_normal((10, 3)) * 0.1 + [0, 5, 0]
    scores = score(logits, np.ones(10, dtype=int), task="ordinal")
    assert scores.undefined == [
        "macro_auroc: no class has both a positive and a negative",
        "macro_auprc: no class has both a positive and a negative",
        "sensitivity_at_specificity: no class has both a positive and a negative",
        "qwk: truth and prediction are the same constant",
    ]
    assert scores.values["accuracy"] == 1
    assert scores.values["ordinal_mae"] == 0


def test_a_dropped_class_leaves_the_macro_averages_and_nothing_else(rng):
    logits, labels = draw_classes(rng)
    whole, without = score(logits, labels), score(logits, labels, dropped=("b",))
    assert without.values["macro_auroc"] == pytest.approx(np.mean(whole.class_auroc[[0, 2]]))
    assert np.isnan(without.class_auroc[1])
    for name in ("ece", "brier", "nll", "accuracy"):
        assert without.values[name] == whole.values[name]


def test_a_class_absent_from_train_has_probability_zero_and_counts_as_an_error(rng):
    logits, labels = draw_classes(rng)
    logits[:, 2] = -np.inf
    scores = score(logits, labels, dropped=("c",))
    assert scores.undefined == ["nll: a class that occurs has probability zero"]
    assert scores.values["accuracy"] <= 2 / 3
    assert 0 <= scores.values["brier"] <= 1
    two_way = roc_auc_score(labels == 0, logits[:, 0] - logits[:, 1])
    assert scores.class_auroc[0] == pytest.approx(two_way, abs=1e-12)


def test_a_label_without_both_values_is_skipped_and_a_label_not_fitted_is_undefined(rng):
    logits, labels = draw_labels(rng)
    labels[:, 0] = 0.0
    skipped = score(logits, labels, task="multilabel")
    assert skipped.values["macro_auroc"] == pytest.approx(np.mean(skipped.class_auroc[1:]))
    logits[:, 1] = np.nan
    unfitted = score(logits, labels, task="multilabel")
    assert "macro_auroc: no finite value for b" in unfitted.undefined
    assert unfitted.values == {}
    assert np.isfinite(unfitted.class_auroc[2])


def test_a_target_of_unusable_labels_leaves_every_metric_undefined_with_a_reason(rng):
    scores = score(rng.standard_normal((5, 3)), np.full((5, 3), np.nan), task="multilabel")
    assert scores.values == {}
    assert len(scores.undefined) == len(METRICS) - 2
    assert all("no class has both" in reason for reason in scores.undefined)


def test_the_binary_confidence_setting_chooses_ece_and_both_are_stored(rng):
    logits, labels = draw_labels(rng, n=200)
    positive, maximum = (
        score(logits, labels, task="multilabel", binary_confidence=name).values
        for name in ("positive", "max")
    )
    assert positive["ece"] != positive["ece_max_confidence"]
    assert maximum["ece"] == maximum["ece_max_confidence"] == positive["ece_max_confidence"]


def test_metrics_of_neighbour_votes_with_certain_and_tied_levels(rng):
    votes = rng.multinomial(5, [0.6, 0.3, 0.1], size=40) / 5
    with np.errstate(divide="ignore"):
        scores = score(np.log(votes), np.arange(40) % 3)
    assert set(scores.values) >= {"macro_auroc", "ece", "adaptive_ece", "brier", "accuracy"}
    assert scores.undefined == ["nll: a class that occurs has probability zero"]


# --- The records of a cell --------------------------------------------------------------------


class CellTables:
    """Predictions and fits of a cell in which all seeds share the fit at full labels."""

    def __init__(self, rng, *, failed=()):
        self.samples = [f"s{i:02d}" for i in range(N)]
        self.labels = np.arange(N) % 3
        self.shift_labels = np.arange(N) % 2  # class c does not occur there
        self.evaluated = {
            "own": side(self.samples, self.labels),
            "other": side(self.samples, self.shift_labels),
        }
        self.logits = {}
        tables, fits = [predictions_schema(3).to_frame()], []
        for fraction, seed in product(FRACTIONS, SEEDS):
            fit_seed = 0 if fraction == 1.0 else seed
            is_failed = (fraction, seed) in failed
            status = ("failed", "why", 0, None) if is_failed else ("converged", None, 9, 1e-7)
            fits.append((fraction, seed, fit_seed, 12, *status, None, None))
            if fit_seed == seed and not is_failed:
                tables += self._draw(rng, fraction, seed)
        self.predictions = pl.concat(tables)
        self.fits = pl.DataFrame(fits, schema=FITS, orient="row")

    def _draw(self, rng, fraction, seed):
        sets = [("own", "calibration", "clean", 0)]
        sets += [("own", "test", *condition) for condition in CONDITIONS]
        sets.append(("other", "test", "clean", 0))
        for target, side, perturbation, severity in sets:
            logits = draw_classes(rng)[0].astype(np.float32)
            self.logits[fraction, seed, target, side, perturbation, severity] = logits
            yield pl.DataFrame(
                {
                    "label_fraction": [fraction] * N,
                    "seed": [seed] * N,
                    "target": [target] * N,
                    "side": [side] * N,
                    "perturbation": [perturbation] * N,
                    "severity": [severity] * N,
                    "sample": self.samples,
                    "logits": logits,
                },
                schema=predictions_schema(3),
            )

    def keys(self):
        return enumerate_run_keys(
            [Cell("encoder", "own")],
            probes=["logistic"],
            label_fractions=FRACTIONS,
            seeds=SEEDS,
            conditions=CONDITIONS,
            shift={"own": ["other"]},
        )

    def evaluate(self, predictions=None, fits=None):
        return evaluate_cell(
            self.predictions if predictions is None else predictions,
            self.fits if fits is None else fits,
            keys=self.keys(),
            evaluated=self.evaluated,
            scoring=scoring(),
            identity={"own": IDENTITY, "other": IDENTITY},
        )


def test_every_key_has_one_record_of_the_schema_in_canonical_order(rng):
    cell = CellTables(rng)
    records = cell.evaluate()
    check_schema(records, RUN_RECORD, "records")
    check_complete(records, cell.keys())
    assert records["seed"].to_list() == list(SEEDS) * (len(records) // len(SEEDS))
    assert records["n_evaluated"].unique().to_list() == [N]


def test_a_record_has_the_metrics_of_its_own_fit_and_set(rng):
    cell = CellTables(rng)
    for row in cell.evaluate().iter_rows(named=True):
        key = (row["label_fraction"], row["fit_seed"], row["target"], "test")
        logits = cell.logits[*key, row["perturbation"], row["severity"]]
        labels = cell.labels if row["target"] == "own" else cell.shift_labels
        expected = score(logits, labels)
        assert row["macro_auroc"] == expected.values["macro_auroc"]
        assert row["ece"] == expected.values["ece"]


def test_seeds_that_share_a_fit_have_equal_records_but_for_the_seed(rng):
    records = CellTables(rng).evaluate()
    at_full = records.filter(pl.col("label_fraction") == 1.0).drop("seed")
    assert at_full.unique().height == len(CONDITIONS) + 1
    assert at_full["fit_seed"].unique().to_list() == [0]


def test_classes_that_do_not_count_are_named_for_each_target_and_counted(rng):
    records = CellTables(rng).evaluate()
    own, other = (
        records.filter(pl.col("target") == name).row(0, named=True) for name in ("own", "other")
    )
    assert own["dropped_classes"] == []
    assert own["class_n_positive"] == [10, 10, 10]
    assert other["dropped_classes"] == ["c"]
    assert other["class_n_positive"] == [15, 15, 0]
    assert other["class_n_negative"] == [15, 15, 30]
    assert other["class_auroc"][2] is None
    assert other["macro_auroc"] == pytest.approx(np.mean(other["class_auroc"][:2]))


def test_a_failed_fit_leaves_null_metrics_with_status_and_reason(rng):
    records = CellTables(rng, failed={(0.1, 1)}).evaluate()
    failed = records.filter(pl.col("fit_status") == "failed")
    assert failed.select("label_fraction", "seed").unique().rows() == [(0.1, 1)]
    assert failed.height == len(CONDITIONS) + 1
    assert failed.select(METRICS).null_count().row(0) == (failed.height,) * len(METRICS)
    row = failed.row(0, named=True)
    assert (row["fit_reason"], row["undefined"]) == ("why", ["all metrics: failed: why"])
    assert row["class_auroc"] == [None, None, None]
    assert records.filter(pl.col("macro_auroc").is_not_null()).height == len(records) - 4


def test_the_order_of_prediction_rows_does_not_matter(rng):
    cell = CellTables(rng)
    shuffled = cell.predictions.sample(fraction=1, shuffle=True, seed=1)
    assert cell.evaluate(shuffled).equals(cell.evaluate())


def test_records_of_a_cell_in_which_all_fits_failed_can_be_made(rng):
    cell = CellTables(rng, failed=set(product(FRACTIONS, SEEDS)))
    assert cell.predictions.is_empty()
    assert cell.evaluate()["macro_auroc"].null_count() == len(list(cell.keys()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.filter(pl.col("perturbation") != "blur"), "no predictions of .*'blur'"),
        (lambda p: p.filter(pl.col("sample") != "s07"), "29 rows, 29 of them of the 30 evaluated"),
        (lambda p: pl.concat([p, p.tail(1)]), "31 rows, 30 of them of the 30 evaluated samples"),
        (
            lambda p: p.with_columns(pl.col("sample").replace("s07", "s99")),
            "30 rows, 29 of them of the 30 evaluated samples",
        ),
    ],
)
def test_predictions_that_do_not_fit_the_split_are_refused(rng, damage, message):
    cell = CellTables(rng)
    with pytest.raises(DataError, match=message):
        cell.evaluate(damage(cell.predictions))


def test_a_missing_fit_is_refused(rng):
    cell = CellTables(rng)
    with pytest.raises(DataError, match=r"no fit for seed 2 at label fraction 0\.1"):
        cell.evaluate(fits=cell.fits.filter(pl.col("seed") != 2))
