"""Draw the label subsamples of one dataset's train side, for every seed."""

import json

from crsbench.digests import frame_digest
from crsbench.files import read_metadata, read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.splits import check_no_leak, class_notes, label_subsamples

with job(snakemake):
    index = read_parquet(snakemake.input.index)
    split = read_parquet(snakemake.input.split)
    check_no_leak(index, split)
    about = read_metadata(snakemake.input.index)
    labels = {
        "task": about["task"],
        "classes": json.loads(about["classes"]),
        "uncertain": snakemake.params.uncertain,
    }
    subsamples = label_subsamples(
        index,
        split,
        dataset=about["dataset"],
        label_fractions=snakemake.params.label_fractions,
        seeds=snakemake.params.seeds,
        **labels,
    )
    metadata = {
        "subsamples_digest": frame_digest(subsamples),
        "notes": json.dumps(class_notes(index, split, **labels)),
    }
    write_parquet(subsamples, snakemake.output.subsamples, metadata=metadata)
