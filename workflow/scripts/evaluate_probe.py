"""Evaluate one cell: predictions become run records."""

import json

from crsbench.cells import Labels, read_sides, read_target
from crsbench.evaluation import Scoring, Truth, evaluate_cell
from crsbench.files import read_metadata, read_parquet
from crsbench.jobs import job
from crsbench.plan import planned_keys
from crsbench.provenance import digest
from crsbench.records import RUN_RECORD, write_records
from crsbench.splits import dropped_classes

with job(snakemake):
    files, params, names = snakemake.input, snakemake.params, snakemake.wildcards
    labels = Labels.read(files.index, uncertain=params.uncertain)
    sides = read_sides(files.index, files.split, labels=labels)
    indexes = dict(zip(params.shift, files.shift_indexes, strict=True))
    evaluated = {names.dataset: sides["test"]} | {
        target: read_target(index, labels=labels) for target, index in indexes.items()
    }
    about = read_metadata(files.predictions)
    of_all = {
        "settings": params.settings,
        "predictions_digest": about["predictions_digest"],
        "code_digest": digest(about["code_digest"], params.code),
    }
    records = evaluate_cell(
        read_parquet(files.predictions),
        read_parquet(files.fits),
        keys=list(planned_keys(params.record_keys)),
        truths={name: Truth(side.samples, side.labels) for name, side in evaluated.items()},
        scoring=Scoring(
            task=labels.task,
            classes=labels.classes,
            dropped=list(
                dropped_classes(
                    sides["train"].targets, sides["test"].targets, classes=labels.classes
                )
            ),
            **params.metrics,
        ),
        identity={
            target: {**identity, **of_all}
            for target, identity in json.loads(about["identity"]).items()
        },
    )
    write_records(records, snakemake.output[0], RUN_RECORD)
