"""Score the case replicates of all cells together: intervals of CRS, ranks, differences, tier."""

import polars as pl

from crsbench.axes import read_axes_table
from crsbench.bootstrap_tables import bootstrap_tables
from crsbench.case_bootstrap import CASES, CROSSED, score_cases
from crsbench.case_sets import ABSENCES
from crsbench.crs import Weights
from crsbench.files import read_parquet, write_csv
from crsbench.jobs import job
from crsbench.reference import AGGREGATE

with job(snakemake):
    files = snakemake.input
    cells = read_axes_table(files.axes)
    absences = pl.concat(pl.read_csv(path, schema=ABSENCES) for path in files.absences)
    absences = absences.unique(maintain_order=True)  # all cells of a dataset saw the same draws
    replicates = pl.concat(read_parquet(path) for path in files.replicates)
    scored = [
        (
            scope,
            score_cases(
                replicates,
                cells,
                absences,
                scope=scope,
                resampled=resampled,
                weights=Weights.named(snakemake.params.weights),
            ),
        )
        for scope in (AGGREGATE, *cells["dataset"].unique(maintain_order=True))
        for resampled in (CASES, CROSSED)
    ]
    for name, table in bootstrap_tables(scored).items():
        write_csv(table, snakemake.output[name])
    write_csv(absences, snakemake.output.absences)
