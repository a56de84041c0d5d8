"""Count how often each class occurs on each side of a dataset and in its shift targets."""

import logging

from crsbench.files import write_csv
from crsbench.jobs import job
from crsbench.prevalence import prevalence_lines, prevalence_table
from crsbench.sides import Labels, read_sides, read_targets

with job(snakemake):
    files, dataset = snakemake.input, snakemake.wildcards.dataset
    labels = Labels.read(files.index, uncertain=snakemake.params.uncertain)
    sides = read_sides(files.index, files.split, labels=labels)
    shift = dict(zip(snakemake.params.shift, files.shift_indexes, strict=True))
    table = prevalence_table(sides | read_targets(shift, labels=labels), classes=labels.classes)
    for line in prevalence_lines(table):
        logging.info("%s: prevalence of %s", dataset, line)
    for note in filter(None, table["note"]):
        logging.warning("%s: %s", dataset, note)
    write_csv(table, snakemake.output.prevalence)
