"""A cohort of six encoders on three datasets less one cell, its axes drawn from a seed."""

import numpy as np
import polars as pl
from panel_oracle import WEIGHTS

from crsbench.crs import AXES
from crsbench.reference import Member, cohort_reference

DATASETS = ("skin", "eye", "chest")
ENCODERS = tuple(Member(name, name.upper(), "group") for name in "abcdef")


def axes_frame(encoders=ENCODERS, *, without=(("b", "eye"),), seed=0):
    random = np.random.default_rng(seed)
    rows = [
        (member.encoder, dataset, *random.uniform(0.5, 1, 4))
        for member in encoders
        for dataset in DATASETS
    ]
    return pl.DataFrame(
        [row for row in rows if row[:2] not in without],
        schema={"encoder": pl.String, "dataset": pl.String} | dict.fromkeys(AXES, pl.Float64),
        orient="row",
    )


def cohort(axes=None, encoders=ENCODERS, **given):
    axes = axes_frame() if axes is None else axes
    return cohort_reference(axes, encoders=encoders, weights=WEIGHTS, **given)
