"""Recompute the paper's published numbers from its published tables."""

from pathlib import Path

from crsbench.files import write_csv, write_text
from crsbench.jobs import job
from crsbench.paper_check import paper_check, render_paper_check

with job(snakemake):
    table = paper_check(Path(snakemake.input[0]).parent)
    write_csv(table, snakemake.output.table)
    write_text(render_paper_check(table), snakemake.output.report)
