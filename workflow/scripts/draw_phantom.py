"""Draw one phantom dataset."""

from crsbench.datasets.phantom import draw_dataset
from crsbench.jobs import job

with job(snakemake):
    draw_dataset(**snakemake.params.drawing, directory=snakemake.output[0])
