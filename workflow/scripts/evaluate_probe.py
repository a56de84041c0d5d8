"""Evaluate one cell: predictions become run records."""

import json

from crsbench.digests import digest
from crsbench.evaluation import Scoring, evaluate_cell
from crsbench.files import read_metadata, read_parquet
from crsbench.jobs import job
from crsbench.plan import planned_keys
from crsbench.records import RUN_RECORD, write_records
from crsbench.sides import Labels, read_evaluated, read_sides

with job(snakemake) as noted:
    files, params, names = snakemake.input, snakemake.params, snakemake.wildcards
    labels = Labels.read(files.index, uncertain=params.uncertain)
    sides = read_sides(files.index, files.split, labels=labels)
    shift = dict(zip(params.shift, files.shift_indexes, strict=True))
    about = read_metadata(files.predictions)
    of_all = {
        "settings": params.settings,
        "predictions_digest": about["predictions_digest"],
        "code_digest": digest(about["code_digest"], noted["code_digest"]),
    }
    records = evaluate_cell(
        read_parquet(files.predictions),
        read_parquet(files.fits),
        keys=list(planned_keys(params.record_keys)),
        evaluated=read_evaluated(names.dataset, sides["test"], shift=shift, labels=labels),
        scoring=Scoring.of(labels, sides, params.metrics),
        identity={
            target: {**identity, **of_all}
            for target, identity in json.loads(about["identity"]).items()
        },
    )
    write_records(records, snakemake.output[0], RUN_RECORD)
