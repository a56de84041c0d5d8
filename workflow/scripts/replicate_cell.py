"""Resample the test cases of one cell: its axes in every replicate, given its fitted probes."""

import polars as pl

from crsbench.case_bootstrap import cell_replicates
from crsbench.case_sets import count_absences, draw_label_seeds, read_drawn_cases
from crsbench.files import read_parquet, write_csv, write_parquet
from crsbench.jobs import job
from crsbench.records import CLEAN
from crsbench.sides import Labels

with job(snakemake):
    files, params, names = snakemake.input, snakemake.params, snakemake.wildcards
    drawn = {"n_replicates": params.n_replicates, "seed": params.seed}
    cases = read_drawn_cases(
        names.dataset,
        index=files.index,
        split=files.split,
        shift=dict(zip(params.shift, files.shift_indexes, strict=True)),
        labels=Labels.read(files.index, uncertain=params.uncertain),
        metrics=params.metrics,
        **drawn,
    )
    replicates = cell_replicates(
        pl.scan_parquet(files.predictions),
        read_parquet(files.fits),
        encoder=names.encoder,
        dataset=names.dataset,
        cases=cases,
        label_fractions=params.label_fractions,
        perturbed=[(name, severity) for name, severity in params.conditions if name != CLEAN],
        seed_counts=draw_label_seeds(params.seeds, **drawn),
    )
    write_csv(count_absences(names.dataset, cases), snakemake.output.absences)
    write_parquet(replicates, snakemake.output.replicates)
