"""Split one dataset into train, calibration and test."""

import json

from crsbench.files import read_metadata, read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.splits import split_index

with job(snakemake):
    index = read_parquet(snakemake.input.index)
    about = read_metadata(snakemake.input.index)
    shares = dict(snakemake.params.sides)
    seed = shares.pop("seed")
    result = split_index(
        index,
        dataset=about["dataset"],
        task=about["task"],
        classes=json.loads(about["classes"]),
        shares=shares,
        seed=seed,
    )
    metadata = result.metadata(index_digest=about["index_digest"])
    write_parquet(result.split, snakemake.output.split, metadata=metadata)
