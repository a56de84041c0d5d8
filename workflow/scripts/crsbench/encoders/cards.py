"""Encoder cards: everything about an encoder that can change a feature, written out.

A card never inherits a transform, a tag or a pooling from a library's default. What a short entry
may leave out has its default here and nowhere else. Nothing here imports torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from crsbench.config import Model, read_yaml
from crsbench.digests import digest
from crsbench.encoders.sources import Weights
from crsbench.encoders.steps import Transform, check_channels, check_crops, check_order, output_px
from crsbench.errors import ConfigError
from crsbench.validation import describe_errors

Scalar = str | int | float | bool | None
SizeClass = Literal["small", "medium", "large", "huge"]


class Feature(Model):
    """Which output is the feature.

    ``pooled``: what the architecture returns without its classifier head; ``cls``: the class token
    after the final norm; ``mean``: the mean of the patch tokens; ``projected``: the mean of the
    patch tokens behind the projector into a language model. `dim` is checked where it is given.
    """

    pool: Literal["pooled", "cls", "mean", "projected"] = "pooled"
    dim: Annotated[int, Field(gt=0)] | None = None


class Cost(Model):
    """What an encoder costs; only ``crsbench doctor`` reads it.

    `gflops` are 10^9 floating-point operations of one image's forward pass, a multiplication and
    an addition counted as two; `parameters_m` are 10^6 parameters. ``crsbench card`` counts both.
    """

    gflops: Annotated[float, Field(gt=0)]
    parameters_m: Annotated[float, Field(ge=0)]


def loader_names() -> list[str]:
    """Return the names that a card's ``loader`` can have."""
    shared = {"__init__", "checkpoint", "untrained", "vision_transformer"}
    folder = Path(__file__).parent / "loaders"
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in shared)


def _known_loader(name: str) -> str:
    if name not in loader_names():
        raise ValueError(f"{name!r} is unknown; allowed: {', '.join(loader_names())}")
    return name


class EncoderCard(Model):
    """An encoder as released: identity, weights, input transform and feature.

    Parameters
    ----------
    name
        Key of the entry; part of file names.
    label
        Name in tables and figures.
    group
        Panel group in the tables.
    domain
        The domain that a specialist was trained for.
    loader
        Module under ``encoders/loaders`` that builds the encoder and reads its checkpoint.
    architecture, options
        Name and keyword arguments that the loader's library builds it from.
    weights
        Where the weights come from; a timm architecture with a tag may leave it out and gets
        ``timm/{architecture}`` at ``main``, whose resolved commit and digest are recorded.
    licence, gated, source
        Terms of the weights, the page where access is asked for, the page of the release.
    transform
        Steps from a canonical RGB image to the tensor that enters the encoder.
    feature
        Which output is the feature, and its dimension.
    blocks, depth_indices
        Number of blocks, and the zero-based blocks at 25, 50, 75 and 100 % of the depth.
    lora_targets
        Regular expression of the module names that LoRA adapts.
    skip_datasets
        Datasets that the released interface does not apply to.
    dtype
        Floating-point type of the forward pass; features are always stored as float32.
    unsafe_pickle
        Whether a checkpoint that cannot be read as plain tensors may run code while it is read.
    cost, size_class
        Operations and parameters, where they are known; where they or the feature's dimension are
        not, the class whose usual values stand in for them. Only the estimates of ``crsbench
        doctor`` read either: no job asks a cluster for resources by them.
    pretraining_overlap
        Datasets of the benchmark that are known to be among the pretraining data.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
    label: Annotated[str, Field(min_length=1)]
    loader: Annotated[str, AfterValidator(_known_loader)]
    architecture: Annotated[str, Field(min_length=1)]
    weights: Weights
    transform: Transform
    group: Literal["generalist", "broad_medical", "medical_multimodal", "specialty", "baseline"] = (
        "generalist"
    )
    domain: Literal["dermatology", "ophthalmology", "radiology"] | None = None
    options: dict[str, Scalar | list[int]] = Field(default_factory=dict)
    licence: str = "not stated"
    gated: str | None = None
    source: str = ""
    feature: Feature = Feature()
    blocks: Annotated[int, Field(gt=0)] | None = None
    depth_indices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    lora_targets: str | None = None
    skip_datasets: tuple[str, ...] = ()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    unsafe_pickle: bool = False
    size_class: SizeClass = "medium"
    cost: Cost | None = None
    pretraining_overlap: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _weights_of_a_tagged_timm_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "weights" in value or value.get("loader") != "timm":
            return value
        architecture = str(value.get("architecture", ""))
        if "." not in architecture:
            raise ValueError(
                f"architecture {architecture!r} has no weight tag, and timm's default tag is "
                "seldom the one meant; write name.tag, or give weights"
            )
        hub = {"repo": f"timm/{architecture}", "revision": "main", "file": "model.safetensors"}
        return {**value, "weights": {"hub": hub}}

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        check_order(self.transform)
        output_px(self.transform)
        check_crops(self.transform)
        check_channels(self.transform)
        if self.depth_indices:
            _check_depths(self.depth_indices, self.blocks)
        if self.lora_targets is not None:
            _check_pattern(self.lora_targets)
        return self


def _check_depths(indices: Sequence[int], blocks: int | None) -> None:
    if len(indices) != 4 or list(indices) != sorted(set(indices)):
        raise ValueError("depth_indices: four blocks, rising, at 25, 50, 75 and 100 % of the depth")
    if blocks is None or indices[-1] >= blocks:
        raise ValueError(f"depth_indices: all must be below blocks = {blocks}")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"lora_targets: not a regular expression: {error}") from error


def input_px(card: EncoderCard) -> int:
    """Return the side of the square tensor that enters the encoder, in pixels."""
    return output_px(card.transform)


def load_cards(paths: Iterable[str | Path]) -> dict[str, EncoderCard]:
    """Read the cards of all files, in their order.

    Each file is a YAML mapping from an encoder's name to its card. A user's file extends the
    project's; the same name in two files is an error, because one of them would be ignored.

    Raises
    ------
    ConfigError
        A file is missing or not YAML, a name is taken twice, or a card is wrong; the message has
        one line for each fault, with file, encoder, key and what is allowed.
    """
    cards: dict[str, EncoderCard] = {}
    homes: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise ConfigError(f"{path}: no such file of encoder definitions")
        for name, entry in read_yaml(path).items():
            if name in homes:
                raise ConfigError(
                    f"{path}: encoder {name} is defined in {homes[name]} too; rename one of them"
                )
            homes[name] = path
            cards[name] = _read_card(name, entry, path)
    return cards


def _read_card(name: str, entry: Any, path: Path) -> EncoderCard:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: encoder {name}: expected a mapping of keys, got {entry!r}")
    try:
        return EncoderCard.model_validate({**entry, "name": name})
    except ValidationError as error:
        raise ConfigError(
            describe_errors(
                error,
                EncoderCard,
                where=lambda _: f"{path}: encoder {name}",
                documented_in="docs/add-an-encoder.md",
            )
        ) from error


def transform_digest(card: EncoderCard) -> str:
    """Return the digest of the input transform."""
    return digest("transform", *(step.model_dump_json() for step in card.transform))


def weights_identity(card: EncoderCard) -> str:
    """Return the digest of what decides the content of the encoder's weights file."""
    weights = card.weights.model_dump_json()
    return digest("weights", card.loader, card.architecture, _json(card.options), weights)


def card_digest(card: EncoderCard) -> str:
    """Return the digest of all that can change a feature.

    Labels, groups, LoRA targets and cluster sizes are left out: editing them re-runs
    nothing.
    """
    identity = (weights_identity(card), transform_digest(card))
    return digest("card", *identity, card.feature.model_dump_json(), card.dtype)


def _json(value: Mapping[str, Any]) -> str:
    return repr(sorted(value.items()))
