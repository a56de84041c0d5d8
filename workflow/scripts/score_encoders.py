"""Score the encoders of a run against a reference: the table, and the notes beside it."""

from pathlib import Path

from crsbench.axes import read_axes_table
from crsbench.crs import Weights
from crsbench.crs_table import crs_notes, crs_table, near_ties
from crsbench.files import read_parquet, write_csv, write_text
from crsbench.jobs import job
from crsbench.notes import feature_lines, notes_text, sample_lines
from crsbench.reference import Member, cohort_reference
from crsbench.reference_files import load_reference

with job(snakemake):
    inputs = snakemake.input
    weights = Weights.named(snakemake.params.score)
    encoders = [Member(*names) for names in snakemake.params.encoders]
    axes = read_axes_table(inputs.axes)
    cohort = cohort_reference(axes, encoders=encoders, weights=weights)
    files = inputs.get("reference", [])  # one at most
    reference = load_reference(files[0], weights=weights) if files else cohort

    before = Path(snakemake.output.scored)  # the axes of the last table: kept for this comparison
    previous = None
    if reference is cohort and before.is_file():
        axes_before = read_axes_table(before)
        members = [Member(name, name, "") for name in axes_before["encoder"].unique()]
        previous = cohort_reference(axes_before, encoders=members, weights=weights)

    about = {"encoders": encoders, "reference": reference}
    write_csv(crs_table(axes, **about), snakemake.output.table)
    notes = notes_text(
        reference,
        excluded=snakemake.params.excluded,
        samples=sample_lines(inputs.exclusions, inputs.noted, inputs.prevalence),
        about_scores=crs_notes(axes, **about, previous=previous),
        near_ties=near_ties(axes, **about),
        features=feature_lines(read_parquet(snakemake.input.run_records)),
    )
    write_text(notes, snakemake.output.notes)
    write_csv(axes, before)
