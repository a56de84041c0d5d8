"""Resample the seeds: label-subsample intervals of CRS, ranks, differences, the leading tier."""

from crsbench.bootstrap_tables import bootstrap_tables, seed_bootstraps
from crsbench.crs import Weights
from crsbench.files import write_csv
from crsbench.jobs import job
from crsbench.records import RUN_RECORD, read_records
from crsbench.seed_records import collect_seed_records

with job(snakemake):
    params = snakemake.params
    records = collect_seed_records(
        read_records(snakemake.input.run_records, RUN_RECORD),
        probe=params.probe,
        encoders=params.encoders,
        datasets=params.datasets,
    )
    scored = seed_bootstraps(
        records,
        draws=params.draws,
        n_replicates=params.n_replicates,
        seed=params.seed,
        weights=Weights.named(params.weights),
    )
    for name, table in bootstrap_tables(scored).items():
        write_csv(table, snakemake.output[name])
