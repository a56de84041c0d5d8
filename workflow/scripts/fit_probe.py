"""Fit one probe on all label subsamples of one cell, and score every evaluated set."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path

from crsbench.digests import frame_digest
from crsbench.features.table import read_features
from crsbench.files import read_metadata, read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.probes.cell import (
    TrainingSide,
    fit_cell,
    prediction_identity,
    read_evaluated_sets,
    score_cell,
)
from crsbench.sides import Labels, read_evaluated, read_sides

with job(snakemake) as noted:
    files, params = snakemake.input, snakemake.params
    dataset = snakemake.wildcards.dataset
    labels = Labels.read(files.index, uncertain=params.uncertain)
    sides = read_sides(files.index, files.split, labels=labels)
    train = sides["train"]
    shift_features = dict(zip(params.shift, files.shift_features, strict=True))
    targets = read_evaluated(
        dataset,
        sides["test"],
        shift=dict(zip(params.shift, files.shift_indexes, strict=True)),
        labels=labels,
    )
    evaluated = read_evaluated_sets(
        dataset,
        clean=Path(files.clean),
        perturbed=Path(files.perturbed),
        samples={side: sides[side].samples for side in ("calibration", "test")},
        conditions=[(name, severity) for name, severity in params.conditions],
        shift={
            target: (Path(path), targets[target].samples) for target, path in shift_features.items()
        },
    )
    probe = import_module(f"crsbench.probes.{snakemake.wildcards.probe}").PROBE
    n_classes, means = len(labels.classes), {"threads": snakemake.threads}
    if probe.engine is not None:  # changes no fit beyond its tolerance
        n_numbers = len(train.samples) * int(read_metadata(files.clean)["dim"])
        means["engine"] = probe.engine(snakemake.config["fitting"]["device"], n_numbers)
        noted["device"] = means["engine"].name
    fits = fit_cell(
        TrainingSide(
            train.samples, read_features(files.clean, samples=train.samples)[1], train.labels
        ),
        fit=partial(probe.fit, task=labels.task, n_classes=n_classes, **means, **params.settings),
        seed_matters=probe.seed_matters,
        subsamples=read_parquet(files.subsamples),
        label_fractions=params.label_fractions,
        seeds=params.seeds,
    )
    predictions, fits_table = score_cell(
        fits, evaluated, score=partial(probe.score, **means), n_classes=n_classes
    )
    identity = prediction_identity(
        clean=files.clean,
        perturbed=files.perturbed,
        split=files.split,
        subsamples=files.subsamples,
        shift=shift_features,
        dataset=dataset,
    )
    metadata = {
        "identity": json.dumps(identity),
        "predictions_digest": frame_digest(fits_table),
        "code_digest": noted["code_digest"],
    }
    write_parquet(predictions, snakemake.output.predictions, metadata=metadata)
    write_parquet(fits_table, snakemake.output.fits)
