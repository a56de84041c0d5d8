"""Convert one encoder's checkpoint to the tensors that its features need."""

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.weights import write_weights
from crsbench.jobs import job

with job(snakemake):
    card = EncoderCard.model_validate_json(snakemake.params.card)
    write_weights(card, snakemake.output[0])
