"""Aggregation: means over seeds, undefined if undefined for one of them."""

import polars as pl
import pytest

from crsbench.aggregation import average_over_seeds, gather
from crsbench.errors import DataError
from crsbench.records import METRIC_ROW, RUN_RECORD, RunKey, write_records


def records(**columns):
    n_rows = len(next(iter(columns.values())))
    key = {
        "probe": "logistic", "encoder": "e", "dataset": "d", "target": "d",
        "label_fraction": 1.0, "perturbation": "clean", "severity": 0,
    }  # fmt: skip
    base = {name: [value] * n_rows for name, value in key.items()}
    empty = {name: [None] * n_rows for name in RUN_RECORD.names() if name not in base}
    given = {"seed": list(range(n_rows)), "undefined": [[]] * n_rows}
    return pl.DataFrame(empty | base | given | columns, schema=RUN_RECORD)


def test_a_row_is_the_mean_over_its_seeds():
    rows = average_over_seeds(records(ece=[0.1, 0.2], class_auroc=[[0.5, 1.0], [0.7, 0.8]]))
    assert rows.schema == METRIC_ROW
    assert rows["ece"].to_list() == pytest.approx([0.15])
    assert rows["class_auroc"].to_list()[0] == pytest.approx([0.6, 0.9])
    assert rows["n_seeds"].to_list() == [2]


def test_a_metric_undefined_for_one_seed_is_undefined_in_the_row_with_its_reason():
    rows = average_over_seeds(
        records(
            qwk=[0.5, None],
            class_auroc=[[0.5, None], [0.7, 0.8]],
            undefined=[[], ["qwk: constant"]],
        )
    )
    assert rows["qwk"].to_list() == [None]
    assert rows["class_auroc"].to_list()[0] == pytest.approx([0.6, None])
    assert rows["undefined"].to_list() == [["qwk: constant"]]


def test_rows_keep_the_order_of_the_records():
    frame = records(perturbation=["rician", "blur", "rician"], seed=[0, 0, 1], ece=[1.0, 2.0, 3.0])
    rows = average_over_seeds(frame)
    assert rows["perturbation"].to_list() == ["rician", "blur"]
    assert rows["ece"].to_list() == [2.0, 2.0]


def test_gathering_orders_by_the_plan_and_refuses_a_gap(tmp_path):
    frame = records(ece=[0.1, 0.2])
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, row in zip(paths, (1, 0), strict=True):
        write_records(frame[row], path, RUN_RECORD)
    keys = [RunKey(*row) for row in frame.select(RunKey._fields).iter_rows()]
    assert gather(paths, expected=keys)["ece"].to_list() == [0.1, 0.2]
    with pytest.raises(DataError, match="1 missing"):
        gather(paths[:1], expected=keys)
