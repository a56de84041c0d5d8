"""Verify one dataset: its labels against its release, its images by looking at them."""

from pathlib import Path

from crsbench.datasets.definitions import load_adapter, load_definitions
from crsbench.datasets.verdicts import judge, settle
from crsbench.datasets.verification import describe_images, verify_images
from crsbench.files import write_csv, write_json
from crsbench.jobs import job

with job(snakemake):
    config = snakemake.config
    definition = load_definitions(
        config["dataset_definitions"], data_root=config["data_root"], store=config["store"]
    )[snakemake.wildcards.dataset]
    listing = load_adapter(definition).read_listing(definition)
    verdict = judge(definition, listing)
    settle(verdict, unlike_release=config["unlike_release"])
    images = verify_images(
        listing,
        definition,
        verify=snakemake.params.verify,
        threads=snakemake.threads,
        unusable=Path(snakemake.output.images).with_name("unusable.csv"),  # only on failure
    )
    write_csv(images, snakemake.output.images)
    seen = describe_images(images, verify=snakemake.params.verify)
    write_json(verdict.as_record() | {"images": seen}, snakemake.output.verdict)
