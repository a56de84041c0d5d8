"""Agreement of probes: ranks over what both have, in the aggregate and on each dataset."""

import polars as pl
import pytest
from scipy.stats import kendalltau, spearmanr

from crsbench.probe_agreement import PROBE_AGREEMENT, probe_agreement

PRIMARY = {"a": [0.9, 0.8], "b": [0.8, 0.6], "c": [0.7, 0.9], "d": [0.6, 0.7]}


def rows_of(probe, values, *, fraction=1.0, perturbation="clean", target=None):
    return [
        (probe, encoder, dataset, target or dataset, fraction, perturbation, value)
        for encoder, aurocs in values.items()
        for dataset, value in zip(("skin", "eye"), aurocs, strict=True)
    ]


def table(*rows):
    columns = [
        *("probe", "encoder", "dataset", "target", "label_fraction", "perturbation"),
        "macro_auroc",
    ]
    return pl.DataFrame([row for part in rows for row in part], schema=columns, orient="row")


def agreement(other, *, extra=()):
    rows = table(rows_of("logistic", PRIMARY), rows_of("knn", other), *extra)
    return {row["scope"]: row for row in probe_agreement(rows, primary="logistic").to_dicts()}


def test_the_same_values_agree_fully_in_every_scope():
    found = agreement(PRIMARY)
    assert list(found) == ["aggregate", "skin", "eye"]
    for row in found.values():
        assert row["tau"] == row["rho"] == pytest.approx(1)
        assert row["auroc"] == pytest.approx(row["auroc_primary"])
        assert (row["probe"], row["n_encoders"], row["reason"]) == ("knn", 4, None)


def test_correlations_are_those_of_scipy():
    other = {"a": [0.7, 0.7], "b": [0.6, 0.9], "c": [0.8, 0.8], "d": [0.5, 0.6]}
    found = agreement(other)
    means = [[sum(values[name]) / 2 for name in "abcd"] for values in (other, PRIMARY)]
    assert found["aggregate"]["tau"] == pytest.approx(kendalltau(*means).statistic)
    assert found["aggregate"]["rho"] == pytest.approx(spearmanr(*means).statistic)
    skin = [[values[name][0] for name in "abcd"] for values in (other, PRIMARY)]
    assert found["skin"]["tau"] == pytest.approx(kendalltau(*skin).statistic)
    assert found["skin"]["auroc"] == pytest.approx(0.65)
    assert found["skin"]["auroc_primary"] == pytest.approx(0.75)


def test_an_encoder_counts_where_both_probes_have_a_value():
    found = agreement(PRIMARY | {"a": [None, 0.8], "b": [None, None]})
    assert [found[scope]["n_encoders"] for scope in ("aggregate", "skin", "eye")] == [3, 2, 3]
    assert found["aggregate"]["auroc_primary"] == pytest.approx((0.8 + 0.8 + 0.65) / 3)


def test_too_few_encoders_have_a_reason():
    found = agreement({"a": [0.9, None], "b": [None] * 2, "c": [None] * 2, "d": [None] * 2})
    assert found["skin"]["tau"] is None
    assert found["skin"]["reason"] == "1 encoders, or all tied"
    assert found["eye"]["auroc"] is None


def test_other_conditions_fractions_and_targets_do_not_enter():
    shuffled = {"a": [0.1, 0.2], "b": [0.3, 0.4], "c": [0.2, 0.2], "d": [0.4, 0.1]}
    extra = [
        rows_of("knn", shuffled, fraction=0.1),
        rows_of("knn", shuffled, perturbation="blur"),
        rows_of("knn", shuffled, target="elsewhere"),
    ]
    assert agreement(PRIMARY, extra=extra) == agreement(PRIMARY)


def test_one_probe_makes_an_empty_table():
    found = probe_agreement(table(rows_of("logistic", PRIMARY)), primary="logistic")
    assert found.is_empty()
    assert found.schema == PROBE_AGREEMENT
