"""Acquire one dataset: use what is there, fetch what is missing and may be fetched."""

from pathlib import Path

from crsbench.acquisition.receipts import acquire
from crsbench.datasets.definitions import load_definitions
from crsbench.files import write_json
from crsbench.jobs import job

with job(snakemake):
    config = snakemake.config
    definitions = load_definitions(
        config["dataset_definitions"], data_root=config["data_root"], store=config["store"]
    )
    receipt = acquire(
        definitions[snakemake.wildcards.dataset],
        not_acquired=Path(snakemake.output[0]).with_name("not_acquired.csv"),  # only on failure
    )
    write_json(receipt, snakemake.output[0])
