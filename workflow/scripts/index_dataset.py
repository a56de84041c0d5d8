"""Index one dataset: its label files and verified images become one table of samples."""

from crsbench.datasets.definitions import DatasetDefinition
from crsbench.datasets.indexing import build_index, index_metadata
from crsbench.datasets.tables import read_images
from crsbench.files import write_csv, write_parquet
from crsbench.jobs import job

with job(snakemake):
    definition = DatasetDefinition.model_validate_json(snakemake.params.definition)
    result = build_index(
        definition,
        read_images(snakemake.input.images),
        conflicting_labels=snakemake.params.conflicting_labels,
        near_duplicates=snakemake.params.near_duplicates,
    )
    write_csv(result.exclusions, snakemake.output.exclusions)
    write_csv(result.duplicates, snakemake.output.duplicates)
    metadata = index_metadata(definition, result.index)
    write_parquet(result.index, snakemake.output.index, metadata=metadata)
