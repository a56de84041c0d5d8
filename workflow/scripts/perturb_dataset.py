"""Perturb one dataset's test images: record the seed and the pixels' digest of each."""

import polars as pl

from crsbench.digests import frame_digest
from crsbench.files import read_metadata, read_parquet, write_parquet
from crsbench.jobs import job
from crsbench.manifest import perturbation_manifest

with job(snakemake):
    split = read_parquet(snakemake.input.split).filter(pl.col("side") == "test")
    index = read_parquet(snakemake.input.index)
    manifest = perturbation_manifest(
        index.join(split, on="sample", how="semi", maintain_order="left"),
        dataset=snakemake.wildcards.dataset,
        root=snakemake.params.root,
        perturbations=snakemake.params.perturbations,
        severities=snakemake.params.severities,
        max_side_px=snakemake.params.max_side_px,
        threads=snakemake.threads,
    )
    metadata = {
        "index_digest": read_metadata(snakemake.input.index)["index_digest"],
        "perturbation_digest": frame_digest(manifest),
    }
    write_parquet(manifest, snakemake.output[0], metadata=metadata)
