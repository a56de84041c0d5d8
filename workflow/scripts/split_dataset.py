"""Split one dataset into train, calibration and test, and draw its label subsamples."""

import json

from crsbench.files import read_metadata, read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.provenance import frame_digest
from crsbench.splits import check_no_leak, label_subsamples, split_index

with job(snakemake):
    index = read_parquet(snakemake.input.index)
    about = read_metadata(snakemake.input.index)
    sides = dict(snakemake.params.sides)
    seed = sides.pop("seed")
    task = {
        "dataset": about["dataset"],
        "task": about["task"],
        "classes": json.loads(about["classes"]),
        "uncertain": snakemake.params.uncertain,
    }
    result = split_index(index, fractions=sides, seed=seed, **task)
    check_no_leak(index, result.split)
    subsamples = label_subsamples(
        index,
        result.split,
        label_fractions=snakemake.params.label_fractions,
        seeds=snakemake.params.seeds,
        **task,
    )
    metadata = result.metadata(index_digest=about["index_digest"])
    write_parquet(result.split, snakemake.output.split, metadata=metadata)
    metadata = {"subsamples_digest": frame_digest(subsamples)}
    write_parquet(subsamples, snakemake.output.subsamples, metadata=metadata)
