"""Extract the features of one dataset's images by one encoder."""

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.weights import load_encoder
from crsbench.features.extraction import Compute, extract_clean, write_extracted
from crsbench.files import read_metadata, read_parquet
from crsbench.jobs import job
from crsbench.progress import meter

with job(snakemake):
    card = EncoderCard.model_validate_json(snakemake.params.card)
    encoder = load_encoder(card, snakemake.input.weights)
    index = read_parquet(snakemake.input.index)
    means = snakemake.config["extraction"]  # not params: they change no feature
    with meter(total=index.height, what=card.name, unit="images") as advance:
        features = extract_clean(
            encoder,
            index,
            root=snakemake.params.root,
            max_side_px=snakemake.params.max_side_px,
            compute=Compute(means["batch_size"], snakemake.threads, means["device"]),
            progress=advance,
        )
    write_extracted(
        features,
        snakemake.output[0],
        encoder=encoder,
        dataset=snakemake.wildcards.dataset,
        index_digest=read_metadata(snakemake.input.index)["index_digest"],
    )
