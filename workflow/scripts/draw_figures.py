"""Draw the two figures of a run from its table of scores."""

from crsbench import figures
from crsbench.crs_table import read_crs_table
from crsbench.jobs import job

with job(snakemake):
    table = read_crs_table(snakemake.input.table)
    for name, draw in (("profiles", figures.profiles), ("ranks", figures.ranks)):
        figure = draw(table, synthetic=snakemake.params.synthetic)
        figures.save(figure, snakemake.output[name])
