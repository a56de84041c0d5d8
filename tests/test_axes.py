"""The axes of a cell: known values, the order of averaging, reasons, broken input."""

import math

import numpy as np
import polars as pl
import pytest

from crsbench.axes import (
    AXES_TABLE,
    aulc,
    axes_table,
    label_efficiency,
    read_axes_table,
    relative_drops,
    robustness,
    shift_drop,
)
from crsbench.errors import DataError
from crsbench.files import write_csv
from crsbench.records import METRIC_ROW, METRICS

FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)
AUROC = dict(zip(FRACTIONS, (0.6, 0.7, 0.72, 0.76, 0.8), strict=True))
DROPS = {("blur", 1): 0.08, ("blur", 2): 0.16, ("jpeg", 1): -0.04}


def metric_row(**given):
    row = dict.fromkeys(METRIC_ROW.names())
    row |= {"probe": "logistic", "encoder": "a", "dataset": "skin", "target": "skin"}
    row |= {"label_fraction": 1.0, "perturbation": "clean", "severity": 0}
    row |= {"n_seeds": 5, "n_train": 100.0, "undefined": [], "class_auroc": [0.7, 0.9]}
    row |= dict.fromkeys(METRICS, 0.5)
    return row | given


def cell(encoder="a", dataset="skin", *, fractions=FRACTIONS, perturbed=True, shift=()):
    """Rows of a cell: AUROC by fraction as `AUROC`, drops at 100 % labels as `DROPS`."""
    key = {"encoder": encoder, "dataset": dataset, "target": dataset}
    rows = []
    for fraction in fractions:
        rows.append(
            metric_row(**key, label_fraction=fraction, macro_auroc=AUROC[fraction], ece=0.1)
        )
        for (name, severity), drop in DROPS.items() if perturbed else ():
            auroc = AUROC[fraction] - drop * (1 if fraction == 1 else 0.5)
            where = {"perturbation": name, "severity": severity, "label_fraction": fraction}
            rows.append(metric_row(**key, **where, macro_auroc=auroc))
        for target, class_auroc in shift:
            where = {"encoder": encoder, "dataset": dataset, "target": target}
            rows.append(metric_row(**where, label_fraction=fraction, class_auroc=class_auroc))
    return rows


def axes_of(rows, *, robustness_fractions=(1.0,)):
    table = axes_table(
        pl.DataFrame(rows, schema=METRIC_ROW),
        probe="logistic",
        robustness_fractions=robustness_fractions,
    )
    return table.row(0, named=True)


class TestArrays:
    def test_label_efficiency_is_the_mean_ratio_and_may_exceed_one(self):
        found = label_efficiency(np.array([[0.4, 0.8], [0.9, 0.9]]), np.array([0.8, 0.6]))
        np.testing.assert_allclose(found, [0.75, 1.5])

    def test_ratio_of_means_is_not_mean_of_ratios(self):
        low, full = np.array([0.5, 0.9]), np.array([0.5, 1.0])
        of_means = label_efficiency(low.mean(keepdims=True), full.mean())
        assert not math.isclose(of_means, (low / full).mean(), rel_tol=1e-3)

    def test_a_rise_of_auroc_is_no_drop(self):
        found = relative_drops(np.array(0.8), np.array([0.6, 0.9]))
        np.testing.assert_allclose(found, [0.25, 0.0])

    def test_robustness_averages_two_terms_or_three_with_a_shift(self):
        drops = np.array([0.1, 0.3])
        np.testing.assert_allclose(robustness(drops), 1 - (0.2 + 0.3) / 2)
        np.testing.assert_allclose(robustness(drops, shift=np.array(0.1)), 1 - 0.6 / 3)

    def test_robustness_is_one_without_loss_and_never_negative(self):
        assert robustness(np.zeros(15)) == 1
        assert robustness(np.full(15, 1.5)) == 0

    def test_shift_drop_uses_the_classes_defined_in_both(self):
        source, target = np.array([0.8, 0.6, np.nan, 1.0]), np.array([0.4, 0.3, 0.9, np.nan])
        np.testing.assert_allclose(shift_drop(source, target), 0.5)

    def test_shift_drop_is_undefined_without_a_common_class(self):
        assert np.isnan(shift_drop(np.array([0.8, np.nan]), np.array([np.nan, 0.8])))

    def test_aulc_of_a_constant_curve_is_the_constant(self):
        for log in (False, True):
            np.testing.assert_allclose(aulc(np.full(5, 0.7), FRACTIONS, log=log), 0.7)

    def test_aulc_of_a_line_is_its_middle(self):
        np.testing.assert_allclose(aulc(np.array([0.2, 0.4, 1.0]), (0.2, 0.4, 1.0)), 0.6)
        np.testing.assert_allclose(aulc(np.array([0.0, 1.0, 2.0]), (0.01, 0.1, 1.0), log=True), 1.0)

    def test_zero_auroc_with_all_labels_makes_ratios_undefined(self):
        assert np.isnan(label_efficiency(np.array([0.5]), np.array(0.0)))
        assert np.isnan(relative_drops(np.array(0.0), np.array([0.5]))).all()

    def test_nan_spreads(self):
        assert np.isnan(label_efficiency(np.array([0.5, np.nan]), np.array(0.8)))
        assert np.isnan(robustness(np.array([0.1, np.nan])))

    def test_batch_has_the_same_bits_as_single_replicates(self):
        drops = np.random.default_rng(0).uniform(0, 0.3, (7, 15))
        batch = robustness(np.asfortranarray(drops), shift=drops[:, 0])
        alone = [robustness(row, shift=row[0]) for row in drops]
        np.testing.assert_array_equal(batch, alone)


class TestTable:
    def test_known_cell(self):
        found = axes_of(cell())
        ratios = [AUROC[fraction] / 0.8 for fraction in FRACTIONS[:-1]]
        mean_drop, worst_drop = (0.1 + 0.2 + 0) / 3, 0.2
        expected = {
            "discrimination": 0.8,
            "calibration": 0.9,
            "label_efficiency": sum(ratios) / 4,
            "robustness": 1 - (mean_drop + worst_drop) / 2,
            "mean_drop": mean_drop,
            "worst_drop": worst_drop,
        }
        for name, value in expected.items():
            assert math.isclose(found[name], value, rel_tol=1e-12), name
        assert found["robustness_corruption_only"] == found["robustness"]
        assert found["shift_drop"] is None
        assert found["reason"] is None

    def test_shift_is_a_third_term_and_absent_from_corruption_only(self):
        found = axes_of(cell(shift=[("other", [0.35, None])]))
        assert math.isclose(found["shift_drop"], 0.5)
        assert math.isclose(found["robustness"], 1 - (0.1 + 0.2 + 0.5) / 3)
        assert math.isclose(found["robustness_corruption_only"], 1 - (0.1 + 0.2) / 2)

    def test_several_shift_targets_share_one_term(self):
        found = axes_of(cell(shift=[("one", [0.35, 0.45]), ("two", [0.7, 0.9])]))
        assert math.isclose(found["shift_drop"], 0.25)

    def test_supplements(self):
        found = axes_of(cell())
        curve = np.array(list(AUROC.values()))
        linear = np.trapezoid(curve, FRACTIONS) / 0.99
        log = np.trapezoid(curve, np.log(FRACTIONS)) / np.log(100)
        assert math.isclose(found["aulc"], linear, rel_tol=1e-12)
        assert math.isclose(found["aulc_log"], log, rel_tol=1e-12)
        assert math.isclose(found["label_efficiency_log"], log / 0.8, rel_tol=1e-12)

    def test_robustness_fractions_are_a_choice(self):
        found = axes_of(cell(), robustness_fractions=(0.25, 1.0))
        drops = [0.1, 0.2, 0, 0.04 / 0.76, 0.08 / 0.76, 0]
        assert math.isclose(found["mean_drop"], sum(drops) / 6, rel_tol=1e-12)

    def test_row_order_does_not_matter(self):
        rows = cell(shift=[("other", [0.35, 0.45])])
        shuffled = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
        assert axes_of(shuffled)["robustness"] == pytest.approx(axes_of(rows)["robustness"], 1e-15)

    def test_rows_of_other_probes_are_left_alone(self):
        others = [row | {"probe": "knn", "macro_auroc": 0.1} for row in cell()]
        assert axes_of(cell() + others) == axes_of(cell())

    def test_written_table_reads_back_unchanged(self, tmp_path):
        table = axes_table(
            pl.DataFrame(cell(), schema=METRIC_ROW), probe="logistic", robustness_fractions=(1.0,)
        )
        write_csv(table, tmp_path / "axes.csv")
        assert read_axes_table(tmp_path / "axes.csv").equals(table)
        assert table.schema == AXES_TABLE


class TestUndefined:
    def test_undefined_auroc_names_metric_fraction_and_cause(self):
        rows = cell()
        rows[0] |= {"macro_auroc": None, "undefined": ["macro_auroc: one class"]}
        found = axes_of(rows)
        assert found["label_efficiency"] is None
        assert found["discrimination"] == 0.8
        assert found["reason"] == (
            "label_efficiency: macro_auroc undefined, clean, label fraction 0.01 "
            "(macro_auroc: one class)"
        )

    def test_run_with_all_labels_only_has_no_label_efficiency(self):
        found = axes_of(cell(fractions=(1.0,)))
        assert found["label_efficiency"] is None
        assert found["aulc"] is None
        assert found["reason"] == "label_efficiency: no label fraction below 1 in this run"

    def test_run_without_perturbations_has_no_robustness(self):
        found = axes_of(cell(perturbed=False))
        assert found["robustness"] is None
        assert found["reason"] == "robustness: no perturbation in this run"

    def test_undefined_perturbed_auroc_is_not_left_out_of_the_mean(self):
        rows = cell()
        rows[-1]["macro_auroc"] = None
        found = axes_of(rows)
        assert found["robustness"] is None
        assert "under a perturbation" in found["reason"]

    def test_shift_without_common_classes_is_undefined_but_corruption_only_is_not(self):
        found = axes_of(cell(shift=[("other", [None, None])]))
        assert found["robustness"] is None
        assert found["robustness_corruption_only"] is not None
        assert "both on skin and on the shift target" in found["reason"]

    def test_undefined_ece_leaves_the_other_axes(self):
        rows = cell()
        rows[FRACTIONS.index(1.0) * 4]["ece"] = None
        found = axes_of(rows)
        assert found["calibration"] is None
        assert found["robustness"] is not None


class TestErrors:
    def test_probe_without_rows(self):
        with pytest.raises(DataError, match="none of probe mlp; probes there: logistic"):
            axes_table(
                pl.DataFrame(cell(), schema=METRIC_ROW), probe="mlp", robustness_fractions=(1.0,)
            )

    def test_condition_that_stands_twice(self):
        rows = cell()
        with pytest.raises(DataError, match="a on skin: a condition stands twice"):
            axes_of([*rows, rows[0]])

    def test_encoder_that_lacks_a_condition_of_the_others(self):
        with pytest.raises(DataError, match=r"b on skin: 1 conditions .*first: skin/1\.0/jpeg/1"):
            axes_of(cell() + cell("b")[:-1])

    def test_cell_without_all_labels(self):
        with pytest.raises(DataError, match=r"no row of skin/1\.0/clean/0"):
            axes_of(cell(fractions=(0.01, 0.25)))

    def test_shift_target_with_other_classes(self):
        with pytest.raises(DataError, match="another length than the 2 classes of skin"):
            axes_of(cell(shift=[("other", [0.5])]))
