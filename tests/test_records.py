"""Run records: their number, their keys, their schema."""

import polars as pl
import pytest

from crsbench.config import PERTURBATIONS, SEVERITIES
from crsbench.errors import DataError
from crsbench.records import (
    RUN_RECORD,
    Cell,
    RunKey,
    check_complete,
    check_schema,
    conditions,
    enumerate_run_keys,
    read_records,
    write_records,
)

FRACTIONS = (0.01, 0.05, 0.10, 0.25, 1.0)


def full_keys():
    encoders = [f"e{number}" for number in range(15)]
    cells = [
        Cell(encoder, dataset)
        for dataset in ("isic", "aptos", "chexpert")
        for encoder in encoders
        if not (dataset == "aptos" and encoder in ("e13", "e14"))
    ]
    return list(
        enumerate_run_keys(
            cells,
            probes=["logistic"],
            label_fractions=FRACTIONS,
            seeds=range(5),
            conditions=conditions(PERTURBATIONS, SEVERITIES),
            shift={"chexpert": ["mimic"]},
        )
    )


def frame_of(keys):
    return pl.DataFrame(keys, schema={n: RUN_RECORD[n] for n in RunKey._fields}, orient="row")


def test_the_full_grid_has_the_papers_17575_records_in_3515_rows():
    keys = full_keys()
    assert len(keys) == len(set(keys)) == 17_575
    assert len({key._replace(seed=0) for key in keys}) == 3_515
    assert sum(key.target == "mimic" for key in keys) == 15 * 5 * 5


def test_a_cell_has_16_conditions_at_every_fraction_and_seed():
    keys = [key for key in full_keys() if (key.encoder, key.dataset) == ("e0", "isic")]
    assert len(keys) == 16 * 5 * 5
    assert {(key.perturbation, key.severity) for key in keys} >= {("clean", 0), ("fov", 3)}


def test_complete_records_pass_in_any_order():
    keys = full_keys()[:20]
    check_complete(frame_of(keys[::-1]), keys)


def test_missing_surplus_and_repeated_keys_are_named():
    keys = full_keys()[:20]
    stranger = keys[0]._replace(encoder="stranger")
    with pytest.raises(DataError, match=r"1 missing \(logistic/e0/isic/isic/0\.01/clean/0/0\)"):
        check_complete(frame_of(keys[1:]), keys)
    with pytest.raises(DataError, match=r"1 surplus \(logistic/stranger/isic"):
        check_complete(frame_of([*keys, stranger]), keys)
    with pytest.raises(DataError, match="1 repeated"):
        check_complete(frame_of([*keys, keys[0]]), keys)


def test_a_column_of_another_type_missing_or_unknown_is_refused(tmp_path):
    empty = pl.DataFrame(schema=RUN_RECORD)
    with pytest.raises(DataError, match="seed has type String, not Int64"):
        check_schema(empty.with_columns(pl.lit("0").alias("seed")), RUN_RECORD, "here")
    with pytest.raises(DataError, match="column ece is missing"):
        write_records(empty.drop("ece"), tmp_path / "r.parquet", RUN_RECORD)
    with pytest.raises(DataError, match="unknown columns extra"):
        check_schema(empty.with_columns(pl.lit(1).alias("extra")), RUN_RECORD, "here")
    write_records(empty, tmp_path / "r.parquet", RUN_RECORD)
    assert read_records(tmp_path / "r.parquet", RUN_RECORD).schema == RUN_RECORD
