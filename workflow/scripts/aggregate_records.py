"""Aggregate all cells' run records: check that all are there, average over seeds, form axes."""

from crsbench.aggregation import average_over_seeds, gather
from crsbench.axes import axes_table
from crsbench.files import write_csv
from crsbench.jobs import job
from crsbench.plan import planned_keys
from crsbench.records import METRIC_ROW, RUN_RECORD, write_records

with job(snakemake):
    records = gather(snakemake.input.records, expected=planned_keys(snakemake.params.record_keys))
    rows = average_over_seeds(records)
    write_records(records, snakemake.output.run_records, RUN_RECORD)
    write_records(rows, snakemake.output.metric_rows, METRIC_ROW)
    axes = axes_table(
        rows,
        probe=snakemake.params.probe,
        robustness_fractions=snakemake.params.robustness_fractions,
    )
    write_csv(axes, snakemake.output.axes)
