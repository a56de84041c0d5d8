"""Case bootstrap: repeating the drawn cases, with scikit-learn and plain loops, is the oracle."""

import numpy as np
import polars as pl
import pytest
from panel_oracle import WEIGHTS, slow_crs
from scipy.special import expit, softmax
from sklearn.metrics import roc_auc_score

from crsbench.aggregation import average_over_seeds
from crsbench.axes import axes_table
from crsbench.case_bootstrap import (
    CASE_REPLICATES,
    CASES,
    CROSSED,
    cell_replicates,
    score_cases,
)
from crsbench.case_sets import ABSENCES, CaseSet, count_absences, draw_cases
from crsbench.crs import AXES
from crsbench.digests import generator
from crsbench.errors import DataError
from crsbench.evaluation import Scoring, evaluate_cell
from crsbench.records import RunKey
from crsbench.resampling import draw_multisets
from crsbench.score_bootstrap import interval_table
from crsbench.sides import Side
from crsbench.weighted_metrics import GroupDraws

N_REPLICATES = 12
SEEDS = (0, 1)
FRACTIONS = (0.1, 1.0)
PERTURBED = (("blur", 1), ("jpeg", 2))
CLASSES = ("p", "q", "r")
ENCODERS = ("oak", "elm", "ash")
N_CASES = {"skin": 80, "chest": 90, "clinic": 70}


def scoring(dataset, **changes):
    task = "multiclass" if dataset == "skin" else "multilabel"
    settings = {"dropped": (), "n_bins": 15, "specificity": 0.9, "binary_confidence": "positive"}
    return Scoring(task=task, classes=CLASSES, **(settings | changes))


def side(samples, labels):
    return Side(samples, labels, labels if labels.ndim == 2 else np.eye(3)[labels])


def side_of(target):
    random = np.random.default_rng(len(target))
    n = N_CASES[target]
    labels = random.integers(0, 3, n)
    if target != "skin":
        labels = (random.uniform(size=(n, 3)) < 0.4).astype(float)
        labels[random.uniform(size=(n, 3)) < 0.1] = np.nan
    return side([f"{target}{i:03d}" for i in range(n)], labels)


def groups_of(target):
    return [f"g{i // 2}" for i in range(N_CASES[target])]


def case_sets(dataset, **changes):
    targets = ("skin",) if dataset == "skin" else ("chest", "clinic")
    return {
        target: draw_cases(
            side_of(target),
            groups_of(target),
            scoring(dataset, **changes),
            n_replicates=N_REPLICATES,
            generator=generator("cases", target),
        )
        for target in targets
    }


def stored(encoder, dataset):
    """Predictions and fits of a cell: at full labels both seeds share one fit."""
    random = np.random.default_rng(sum(map(ord, encoder + dataset)))
    sets = [(0.1, seed, dataset, "clean", 0) for seed in SEEDS]
    sets += [(1.0, 0, dataset, "clean", 0)]
    sets += [(1.0, 0, dataset, *condition) for condition in PERTURBED]
    sets += [(1.0, 0, "clinic", "clean", 0)] if dataset == "chest" else []
    parts = []
    for fraction, seed, target, perturbation, severity in sets:
        evaluated = side_of(target)
        known = evaluated.truth
        logits = np.nan_to_num(known) + random.normal(0, 1.5, known.shape)
        parts.append(
            pl.DataFrame(
                {
                    "sample": list(reversed(evaluated.samples)),
                    "logits": logits[::-1].astype(np.float32),
                }
            ).with_columns(
                label_fraction=pl.lit(fraction),
                seed=pl.lit(seed),
                target=pl.lit(target),
                side=pl.lit("test"),
                perturbation=pl.lit(perturbation),
                severity=pl.lit(severity),
            )
        )
    fits = pl.DataFrame(
        [
            {
                "label_fraction": fraction,
                "seed": seed,
                "fit_seed": 0 if fraction == 1.0 else seed,
                "status": "converged",
            }
            for fraction in FRACTIONS
            for seed in SEEDS
        ]
    )
    return pl.concat(parts), fits


def seed_counts():
    counts = draw_multisets(2, n_replicates=N_REPLICATES, generator=generator("seeds"))
    return dict(zip(SEEDS, counts.T, strict=True))


def replicate(encoder, dataset, *, predictions=None, fits=None, cases=None):
    found = stored(encoder, dataset)
    return cell_replicates(
        (found[0] if predictions is None else predictions).lazy(),
        found[1] if fits is None else fits,
        encoder=encoder,
        dataset=dataset,
        cases=cases or case_sets(dataset),
        label_fractions=FRACTIONS,
        perturbed=PERTURBED,
        seed_counts=seed_counts(),
    )


def slow_ece(confidence, outcome):
    total = 0.0
    for b in range(15):
        inside = [
            i for i, c in enumerate(confidence) if b / 15 < c <= (b + 1) / 15 or (b == 0 and c == 0)
        ]
        total += abs(sum(confidence[i] - outcome[i] for i in inside))
    return total / len(confidence)


class SlowCell:
    """One replicate of one cell with every drawn case repeated."""

    def __init__(self, encoder, dataset, place, drawn):
        self.predictions, self.fits = stored(encoder, dataset)
        self.dataset = dataset
        self.drawn = drawn
        self.rows = {}
        for target, cases in case_sets(dataset).items():
            counts = cases.draws.blocks[0][:, place]
            names = sorted(set(groups_of(target)))
            self.rows[target] = [
                i
                for i, group in enumerate(groups_of(target))
                for _ in range(int(counts[names.index(group)]))
            ]

    def logits(self, fraction, seed, target, perturbation="clean", severity=0):
        fit = self.fits.filter(label_fraction=fraction, seed=seed)["fit_seed"].item()
        table = self.predictions.filter(
            label_fraction=fraction,
            seed=fit,
            target=target,
            perturbation=perturbation,
            severity=severity,
        ).sort("sample")
        return table["logits"].to_numpy().astype(float)[self.rows[target]]

    def labels(self, target):
        return side_of(target).labels[self.rows[target]]

    def class_auroc(self, target, *key):
        logits, labels = self.logits(key[0], key[1], target, *key[2:]), self.labels(target)
        values = []
        for c in range(3):
            if target == "skin":
                p = softmax(logits, axis=1)[:, c]
                values.append(roc_auc_score(labels == c, p))
            else:
                known = ~np.isnan(labels[:, c])
                values.append(roc_auc_score(labels[known, c], logits[known, c]))
        return values

    def macro(self, *key):
        values = self.class_auroc(self.dataset, *key)
        return sum(values) / len(values)

    def ece(self, seed):
        logits, labels = self.logits(1.0, seed, self.dataset), self.labels(self.dataset)
        if self.dataset == "skin":
            p = softmax(logits, axis=1)
            return slow_ece(p.max(axis=1), p.argmax(axis=1) == labels)
        values = []
        for c in range(3):
            known = ~np.isnan(labels[:, c])
            values.append(slow_ece(expit(logits[known, c]), labels[known, c]))
        return sum(values) / len(values)

    def mean(self, compute):
        values = [compute(seed) for seed in self.drawn]
        return sum(values) / len(values)

    def axes(self):
        full = self.mean(lambda s: self.macro(1.0, s))
        low = self.mean(lambda s: self.macro(0.1, s))
        drops = [
            max(0, (full - self.mean(lambda s, c=c: self.macro(1.0, s, *c))) / full)
            for c in PERTURBED
        ]
        terms = [sum(drops) / 2, max(drops)]
        if self.dataset == "chest":
            target = self.mean(lambda s: np.mean(self.class_auroc("clinic", 1.0, s)))
            terms.append(max(0, (full - target) / full))
        calibration = 1 - self.mean(self.ece)
        return [full, calibration, low / full, max(0, 1 - sum(terms) / len(terms))]


@pytest.fixture(scope="module")
def replicates():
    return pl.concat(
        replicate(encoder, dataset) for encoder in ENCODERS for dataset in ("skin", "chest")
    )


@pytest.fixture(scope="module")
def cells():
    """Point estimates of the axes: any panel will do."""
    random = np.random.default_rng(0)
    rows = [
        (encoder, dataset, *random.uniform(0.5, 1, 4))
        for encoder in ENCODERS
        for dataset in ("skin", "chest")
    ]
    return pl.DataFrame(rows, schema=["encoder", "dataset", *AXES], orient="row")


@pytest.fixture(scope="module")
def absences():
    return pl.concat(count_absences(dataset, case_sets(dataset)) for dataset in ("skin", "chest"))


class TestCells:
    @pytest.mark.parametrize("dataset", ["skin", "chest"])
    @pytest.mark.parametrize("resampled", [CASES, CROSSED])
    def test_axes_agree_with_repeated_cases_in_plain_loops(self, replicates, dataset, resampled):
        table = replicates.filter(encoder="oak", dataset=dataset, resampled=resampled)
        assert table["replicate"].to_list() == list(range(N_REPLICATES))
        counts = seed_counts()
        for place in (0, 5, 11):
            drawn = SEEDS
            if resampled == CROSSED:
                drawn = [seed for seed in SEEDS for _ in range(counts[seed][place])]
            expected = SlowCell("oak", dataset, place, drawn).axes()
            found = table.filter(replicate=place).select(AXES).row(0)
            np.testing.assert_allclose(found, expected, atol=1e-12)

    def test_crossing_with_seeds_moves_label_efficiency_alone_when_full_fits_are_shared(
        self, replicates
    ):
        apart = [replicates.filter(resampled=name) for name in (CASES, CROSSED)]
        for axis in AXES:
            differs = not apart[0][axis].equals(apart[1][axis])
            assert differs == (axis == "label_efficiency")

    def test_the_order_of_cases_and_predictions_does_not_matter(self, replicates):
        predictions, _ = stored("elm", "chest")
        shuffled = predictions.sample(fraction=1, shuffle=True, seed=0)
        found = replicate("elm", "chest", predictions=shuffled)
        assert found.schema == CASE_REPLICATES
        assert found.equals(replicates.filter(encoder="elm", dataset="chest"))

    def test_the_other_binary_confidence_changes_calibration_alone(self):
        cases = case_sets("chest", binary_confidence="max")
        found, usual = replicate("oak", "chest", cases=cases), replicate("oak", "chest")
        changed = [axis for axis in AXES if not found[axis].equals(usual[axis])]
        assert changed == ["calibration"]

    def test_a_dropped_class_does_not_count_at_all(self):
        predictions, _ = stored("oak", "chest")
        cases = case_sets("chest", dropped=("q",))
        spoiled = predictions.with_columns(
            pl.col("logits").arr.to_list().list.eval(
                pl.when(pl.int_range(pl.len()) == 1).then(-pl.element()).otherwise(pl.element())
            ).list.to_array(3)
        )  # fmt: skip
        found = replicate("oak", "chest", cases=cases, predictions=spoiled)
        assert found.equals(replicate("oak", "chest", cases=cases))

    def test_a_failed_fit_leaves_its_axes_undefined(self):
        _, fits = stored("oak", "skin")
        failed = fits.with_columns(
            status=pl.when(label_fraction=0.1, seed=1)
            .then(pl.lit("failed"))
            .otherwise(pl.lit("converged"))
        )
        table = replicate("oak", "skin", fits=failed)
        assert table["label_efficiency"].null_count() == 2 * N_REPLICATES
        assert table["discrimination"].null_count() == 0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"predictions": lambda p: p[1:]}, "79 rows, 79 of them of the 80 evaluated samples"),
            ({"predictions": lambda p: p.filter(pl.col("severity") != 2)}, "jpeg.*0 rows"),
            ({"fits": lambda f: f.filter(pl.col("seed") == 0)}, "no fit for seed 1 at label"),
        ],
    )
    def test_predictions_that_do_not_belong_are_refused(self, change, message):
        predictions, fits = stored("oak", "skin")
        given = {"predictions": predictions, "fits": fits}
        given |= {name: spoil(given[name]) for name, spoil in change.items()}
        with pytest.raises(DataError, match=message):
            replicate("oak", "skin", **given)

    def test_groups_must_be_given_for_every_case(self):
        with pytest.raises(DataError, match="3 groups for 80 test cases"):
            draw_cases(
                side_of("skin"), ["a"] * 3, scoring("skin"), n_replicates=1, generator=generator(0)
            )


class TestAbsences:
    def rare(self, n_positive):
        """Twenty groups of which `n_positive` hold the rare class, in 200 replicates."""
        labels = np.array([0, 1] * 10)
        labels[:n_positive] = 2
        samples = [str(i) for i in range(20)]
        return {
            "skin": draw_cases(
                side(samples, labels),
                samples,
                scoring("skin"),
                n_replicates=200,
                generator=generator(0),
            )
        }

    def test_replicates_without_a_class_are_counted(self):
        cases = self.rare(2)
        table = count_absences("skin", cases)
        assert table.schema == ABSENCES
        counts = cases["skin"].draws.blocks[0]
        expected = int((counts[:2].sum(axis=0) == 0).sum())
        assert table.rows() == [
            ("skin", "skin", "p", 0, 200),
            ("skin", "skin", "q", 0, 200),
            ("skin", "skin", "r", expected, 200),
            ("skin", "skin", None, expected, 200),
        ]

    def test_an_absent_class_leaves_the_mean_of_the_others(self):
        cases = self.rare(2)["skin"]
        logits = np.random.default_rng(0).normal(size=(20, 3))
        values = cases.class_auroc(logits)
        absent = ~cases.present[:, 2]
        assert absent.any()
        assert np.isnan(values[absent, 2]).all()
        assert np.isfinite(values[absent][:, :2]).all()

    def test_too_many_absences_leave_the_bootstrap_undefined_with_the_reason(
        self, replicates, cells
    ):
        absences = count_absences("skin", self.rare(1))
        scores = score_cases(
            replicates, cells, absences, scope="aggregate", resampled=CASES, weights=WEIGHTS
        )
        table = interval_table(scores)
        assert table["mean"].null_count() == len(table)
        assert "a class of skin is absent from" in table["reason"][0]
        other = score_cases(
            replicates, cells, absences, scope="chest", resampled=CASES, weights=WEIGHTS
        )
        assert interval_table(other)["mean"].null_count() == 0


class TestScores:
    def test_crs_agrees_with_plain_loops(self, replicates, cells, absences):
        scores = score_cases(
            replicates, cells, absences, scope="aggregate", resampled=CROSSED, weights=WEIGHTS
        )
        chosen = replicates.filter(resampled=CROSSED)
        for place in (0, 7):
            axes = []
            for encoder in ENCODERS:
                rows = chosen.filter(encoder=encoder, replicate=place).select(AXES).rows()
                axes.append([sum(column) / 2 for column in zip(*rows, strict=True)])
            found = scores.recomputed.statistic[place]
            np.testing.assert_allclose(found, slow_crs(axes), atol=1e-12)

    def test_intervals_have_mean_bias_and_both_kinds(self, replicates, cells, absences):
        scores = score_cases(
            replicates, cells, absences, scope="skin", resampled=CASES, weights=WEIGHTS
        )
        row = interval_table(scores).filter(encoder="oak", anchors="recomputed").row(0, named=True)
        assert row["resampled"] == "cases"
        assert row["n_replicates"] == N_REPLICATES
        assert row["bias"] == pytest.approx(row["mean"] - row["point"])
        assert row["basic_low"] == pytest.approx(2 * row["point"] - row["percentile_high"])
        assert row["basic_high"] == pytest.approx(2 * row["point"] - row["percentile_low"])

    def test_a_cell_without_its_replicates_is_refused(self, replicates, cells, absences):
        without = replicates.filter(
            ~((pl.col("encoder") == "elm") & (pl.col("dataset") == "chest"))
        )
        with pytest.raises(DataError, match="elm on chest: 0 replicates, expected 12"):
            score_cases(
                without, cells, absences, scope="aggregate", resampled=CASES, weights=WEIGHTS
            )

    def test_an_encoder_without_a_cell_is_no_member(self, replicates, cells, absences):
        missing = cells.filter(~((pl.col("encoder") == "ash") & (pl.col("dataset") == "skin")))
        scores = score_cases(
            replicates, missing, absences, scope="skin", resampled=CASES, weights=WEIGHTS
        )
        assert scores.encoders == ("oak", "elm")


@pytest.mark.parametrize("dataset", ["skin", "chest"])
def test_drawing_every_case_once_gives_the_axes_of_the_run_records(dataset):
    predictions, fits = stored("fir", dataset)
    complete = fits.with_columns(
        n_train=pl.lit(10),
        reason=pl.lit(None, pl.String),
        iterations=pl.lit(1),
        gradient_norm=pl.lit(0.0),
    )
    cases = {
        target: CaseSet(
            found.side,
            found.scoring,
            found.groups,
            GroupDraws((np.ones((found.draws.n_groups, 1), np.float32),)),
        )
        for target, found in case_sets(dataset).items()
    }
    records = evaluate_cell(
        predictions,
        complete,
        keys=[
            RunKey("logistic", "fir", dataset, target, fraction, *condition, seed)
            for fraction, target, condition in evaluated_sets(dataset)
            for seed in SEEDS
        ],
        evaluated={target: found.side for target, found in cases.items()},
        scoring=scoring(dataset),
        identity={target: {} for target in cases},
    )
    expected = (
        axes_table(average_over_seeds(records), probe="logistic", robustness_fractions=(1.0,))
        .select(AXES)
        .row(0)
    )
    found = cell_replicates(
        predictions.lazy(),
        fits,
        encoder="fir",
        dataset=dataset,
        cases=cases,
        label_fractions=FRACTIONS,
        perturbed=PERTURBED,
        seed_counts=dict.fromkeys(SEEDS, np.array([1])),
    )
    for row in found.select(AXES).iter_rows():
        np.testing.assert_allclose(row, expected, atol=1e-12)


def evaluated_sets(dataset):
    sets = [(fraction, dataset, ("clean", 0)) for fraction in FRACTIONS]
    sets += [(1.0, dataset, condition) for condition in PERTURBED]
    return [*sets, (1.0, "clinic", ("clean", 0))] if dataset == "chest" else sets
