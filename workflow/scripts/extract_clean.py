"""Extract the features of one dataset's images by one encoder, and those at its depths."""

from crsbench.config import Extraction
from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.weights import load_encoder
from crsbench.features import extraction
from crsbench.features.shards import shards_beside
from crsbench.files import read_metadata, read_parquet
from crsbench.jobs import job
from crsbench.progress import meter

with job(snakemake):
    card = EncoderCard.model_validate_json(snakemake.params.card)
    encoder = load_encoder(card, snakemake.input.weights)
    index = read_parquet(snakemake.input.index)
    made = read_metadata(snakemake.input.index)
    origin = extraction.Origin(encoder, snakemake.wildcards.dataset, made["index_digest"])
    means = Extraction.model_validate(snakemake.config["extraction"])  # these change no feature
    with (
        shards_beside(snakemake.output.clean, origin.features_digest, snakemake.params) as shards,
        meter(total=index.height, what=card.name, unit="images") as advance,
    ):
        features = extraction.extract_clean(
            encoder,
            index,
            root=snakemake.params.root,
            max_side_px=snakemake.params.max_side_px,
            depth_indices=snakemake.params.depth_indices,
            shards=shards,
            compute=extraction.Compute(means.batch_size, snakemake.threads, means.device),
            progress=advance,
        )
        extraction.write_extracted(features, snakemake.output.clean, origin=origin)
        extraction.write_depths(features, snakemake.output.depth, origin=origin)
