"""Fit one probe on all label subsamples of one cell, and score every evaluated set."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path

from crsbench.cells import Labels, prediction_identity, read_sides, read_target
from crsbench.features.table import read_features
from crsbench.files import read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.probes.cell import TrainingSide, probe_cell, read_evaluated_sets
from crsbench.provenance import frame_digest

with job(snakemake):
    files, params = snakemake.input, snakemake.params
    probe, dataset = snakemake.wildcards.probe, snakemake.wildcards.dataset
    labels = Labels.read(files.index, uncertain=params.uncertain)
    sides = read_sides(files.index, files.split, labels=labels)
    train = sides["train"]
    shift = {
        target: (Path(features), read_target(index, labels=labels).samples)
        for target, features, index in zip(
            params.shift, files.shift_features, files.shift_indexes, strict=True
        )
    }
    evaluated = read_evaluated_sets(
        dataset,
        clean=Path(files.clean),
        perturbed=Path(files.perturbed),
        samples={side: sides[side].samples for side in ("calibration", "test")},
        conditions=[(name, level) for name, level in params.conditions],
        shift=shift,
    )
    fit = getattr(import_module(f"crsbench.probes.{probe}"), f"fit_{probe}")
    predictions, fits = probe_cell(
        TrainingSide(
            train.samples, read_features(files.clean, samples=train.samples)[1], train.labels
        ),
        evaluated,
        fit=partial(fit, task=labels.task, n_classes=len(labels.classes), **params.settings),
        subsamples=read_parquet(files.subsamples),
        label_fractions=params.label_fractions,
        seeds=params.seeds,
        n_classes=len(labels.classes),
    )
    identity = prediction_identity(
        clean=files.clean,
        perturbed=files.perturbed,
        split=files.split,
        subsamples=files.subsamples,
        shift={target: path for target, (path, _) in shift.items()},
        dataset=dataset,
    )
    metadata = {
        "identity": json.dumps(identity),
        "predictions_digest": frame_digest(predictions),
        "code_digest": params.code,
    }
    write_parquet(predictions, snakemake.output.predictions, metadata=metadata)
    write_parquet(fits, snakemake.output.fits)
