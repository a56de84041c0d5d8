"""Extract the features of one dataset's perturbed test images by one encoder."""

from crsbench.config import Extraction
from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.weights import load_encoder
from crsbench.features.extraction import Compute, Origin, write_extracted
from crsbench.features.perturbed import extract_perturbed
from crsbench.features.shards import shards_beside
from crsbench.files import read_metadata, read_parquet
from crsbench.jobs import job
from crsbench.perturbed_cache import PerturbedCache
from crsbench.progress import meter

with job(snakemake):
    card = EncoderCard.model_validate_json(snakemake.params.card)
    encoder = load_encoder(card, snakemake.input.weights)
    manifest = read_parquet(snakemake.input.perturbations)
    made = read_metadata(snakemake.input.perturbations)
    digests = (made["index_digest"], made["perturbation_digest"])
    origin = Origin(encoder, snakemake.wildcards.dataset, *digests)
    means = Extraction.model_validate(snakemake.config["extraction"])  # these change no feature
    cache = PerturbedCache(f"{snakemake.config['store']}/cache/perturbed")
    with (
        shards_beside(snakemake.output[0], origin.features_digest, snakemake.params) as shards,
        meter(total=manifest["sample"].n_unique(), what=card.name, unit="images") as advance,
    ):
        features = extract_perturbed(
            encoder,
            read_parquet(snakemake.input.index),
            manifest,
            dataset=snakemake.wildcards.dataset,
            severities=snakemake.params.severities,
            root=snakemake.params.root,
            max_side_px=snakemake.params.max_side_px,
            shards=shards,
            compute=Compute(means.batch_size, snakemake.threads, means.device),
            cache=cache if means.perturbed_cache else None,
            progress=advance,
        )
        write_extracted(features, snakemake.output[0], origin=origin)
