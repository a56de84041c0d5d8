"""Assess the score: other panels, weights, estimators, decisions, and what transfers."""

from crsbench.axes import read_axes_table
from crsbench.config import Validity
from crsbench.crs import Weights
from crsbench.files import write_csv
from crsbench.jobs import job
from crsbench.records import METRIC_ROW, read_records
from crsbench.validity_tables import validity_tables

with job(snakemake):
    params = snakemake.params
    tables = validity_tables(
        read_axes_table(snakemake.input.axes),
        read_records(snakemake.input.metric_rows, METRIC_ROW),
        probe=params.probe,
        ordinal_datasets=params.ordinal_datasets,
        draws=Validity(**params.draws),
        seed=params.seed,
        weights=Weights.named(params.weights),
    )
    for name, table in tables.items():
        write_csv(table, snakemake.output[name])
