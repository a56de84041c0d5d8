"""Encoder cards: everything about an encoder that can change a feature, written out.

A card never inherits a transform, a tag or a pooling from a library's default. What a short entry
may leave out has its default here and nowhere else. The transform is a list of steps: image steps
work on 8-bit Pillow images, ``scale`` turns the image into a float32 tensor, tensor steps follow.
Nothing here imports torch.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from crsbench.config import Model, describe_errors, read_yaml
from crsbench.digests import digest
from crsbench.errors import ConfigError

Pixels = Annotated[int, Field(gt=0)]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Scalar = str | int | float | bool | None

#: Channel statistics that have a name: ``normalise: imagenet``.
NORMALISATIONS: dict[str, dict[str, tuple[float, ...]]] = {
    "imagenet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "clip": {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    },
    "half": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
}


class Convert(Model):
    """Convert the image to a Pillow mode: RGB, or L (ITU-R 601 luma)."""

    step: Literal["convert"]
    mode: Literal["RGB", "L"]


class Stretch(Model):
    """Map the image's own minimum and maximum, over all channels, to 0 and 255 (truncated)."""

    step: Literal["stretch"]
    to: Literal["full"]


class Resize(Model):
    """Resize with Pillow, which always antialiases.

    ``shorter`` and ``longer`` name the side that becomes `size_px` while the ratio is kept (the
    other is truncated to whole pixels); ``both`` squashes the image to a square.
    """

    step: Literal["resize"]
    size_px: Pixels
    side: Literal["shorter", "longer", "both"]
    interpolation: Interpolation
    antialias: Literal[True] = True


class Pad(Model):
    """Put the image into the centre of a square of `to` pixels, or of its own longer side."""

    step: Literal["pad"]
    to: Pixels | Literal["longer"]
    fill: tuple[Annotated[int, Field(ge=0, le=255)], ...]

    @model_validator(mode="before")
    @classmethod
    def _one_fill_for_all(cls, value: Any) -> Any:
        return _with_tuples(value, "fill")


class Crop(Model):
    """Crop the central square; `offset` says how half a pixel is rounded.

    ``round`` is torchvision's (half to even), ``floor`` that of transformers.
    """

    step: Literal["crop"]
    size_px: Pixels
    offset: Literal["round", "floor"] = "round"


class Scale(Model):
    """Turn the image into a float32 tensor: ``unit`` divides by 255, ``none`` keeps 0 to 255."""

    step: Literal["scale"]
    to: Literal["unit", "none"]


class Repeat(Model):
    """Repeat a single channel."""

    step: Literal["repeat"]
    channels: Annotated[int, Field(gt=1)]


class Normalise(Model):
    """Subtract `mean` and divide by `std`, per channel (one value serves all channels)."""

    step: Literal["normalise"]
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]

    @model_validator(mode="before")
    @classmethod
    def _named_statistics(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "statistics" not in value:
            return _with_tuples(_with_tuples(value, "mean"), "std")
        name = value["statistics"]
        if name not in NORMALISATIONS:
            allowed = ", ".join(NORMALISATIONS)
            raise ValueError(f"{name!r} names no statistics; allowed: {allowed}, or mean and std")
        return {"step": "normalise", **NORMALISATIONS[name]}


class TensorResize(Model):
    """Resize the float tensor to a square, as torchvision does with tensors."""

    step: Literal["tensor_resize"]
    size_px: Pixels
    interpolation: Literal["bilinear", "bicubic"]
    antialias: bool


ImageStep = Convert | Stretch | Resize | Pad | Crop
TensorStep = Repeat | Normalise | TensorResize
Step = Annotated[ImageStep | Scale | TensorStep, Field(discriminator="step")]

#: The field that a step's bare value stands for: ``convert: RGB`` is ``convert: {mode: RGB}``.
BARE_FIELDS = {
    "convert": "mode",
    "stretch": "to",
    "crop": "size_px",
    "scale": "to",
    "repeat": "channels",
    "normalise": "statistics",
}


class HubWeights(Model):
    """A file of a Hugging Face repository at a pinned revision.

    `sha256` (or `md5`, where the authors give no other) is that of `file`; `shard_sha256` those of
    the shards that an index file points to.
    """

    kind: Literal["hub"]
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    revision: str
    file: str
    sha256: Sha256 | None = None
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    shard_sha256: dict[str, Sha256] = Field(default_factory=dict)


class PackageWeights(Model):
    """A file that an installed Python package carries."""

    kind: Literal["package"]
    package: str
    file: str
    sha256: Sha256


class DriveWeights(Model):
    """A file on Google Drive: by its own id, or by name inside a shared folder's id."""

    kind: Literal["drive"]
    id: str
    file: str
    folder: bool = False
    sha256: Sha256 | None = None


class FileWeights(Model):
    """A local checkpoint; a relative path starts at the working directory."""

    kind: Literal["file"]
    path: str
    sha256: Sha256 | None = None


class RandomWeights(Model):
    """No training: weights drawn from `seed`."""

    kind: Literal["random"]
    seed: Annotated[int, Field(ge=0)]


class NoWeights(Model):
    """The encoder has no weights."""

    kind: Literal["none"]


Weights = Annotated[
    HubWeights | PackageWeights | DriveWeights | FileWeights | RandomWeights | NoWeights,
    Field(discriminator="kind"),
]


class Feature(Model):
    """Which output is the feature.

    ``pooled``: what the architecture returns without its classifier head; ``cls``: the class token
    after the final norm; ``mean``: the mean of the patch tokens; ``projected``: the mean of the
    patch tokens behind the projector into a language model. `dim` is checked where it is given.
    """

    pool: Literal["pooled", "cls", "mean", "projected"] = "pooled"
    dim: Annotated[int, Field(gt=0)] | None = None


def _with_tuples(value: Any, key: str) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get(key), int | float):
        return {**value, key: (value[key],)}
    return value


def _tagged(tag: str, value: Any) -> Any:
    """Turn ``resize: {…}`` into ``{step: resize, …}``, and ``convert: RGB`` alike."""
    if isinstance(value, str):
        return {tag: value}
    if not isinstance(value, Mapping) or tag in value or len(value) != 1:
        return value
    ((kind, content),) = value.items()
    if content is None:
        return {tag: kind}
    if isinstance(content, Mapping):
        return {**content, tag: kind}
    bare = BARE_FIELDS.get(kind) if isinstance(kind, str) else None
    return {tag: kind, bare: content} if bare else value


def _expanded(value: Any) -> Any:
    """Turn the short form of a transform into its steps."""
    if not isinstance(value, Mapping):
        return value
    allowed = {"resize_px", "crop_px", "interpolation", "normalise"}
    wrong = sorted(set(value) - allowed) + sorted(allowed - {"crop_px"} - set(value))
    if wrong:
        raise ValueError(
            f"short form: {', '.join(wrong)} unknown or missing; it has resize_px, interpolation, "
            "normalise and, where the ratio is kept, crop_px; or write a list of steps"
        )
    side = "shorter" if "crop_px" in value else "both"
    resize = {"size_px": value["resize_px"], "side": side, "interpolation": value["interpolation"]}
    crop = [{"crop": value["crop_px"]}] if "crop_px" in value else []
    head = [{"convert": "RGB"}, {"resize": resize}]
    return [*head, *crop, {"scale": "unit"}, {"normalise": value["normalise"]}]


def _tagged_steps(value: Any) -> Any:
    steps = _expanded(value)
    return [_tagged("step", step) for step in steps] if isinstance(steps, list) else steps


Transform = Annotated[tuple[Step, ...], BeforeValidator(_tagged_steps)]


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
    size_class
        Class of memory and time on a cluster.
    pretraining_overlap
        Datasets of the benchmark that are known to be among the pretraining data.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
    label: Annotated[str, Field(min_length=1)]
    loader: Annotated[str, AfterValidator(_known_loader)]
    architecture: Annotated[str, Field(min_length=1)]
    weights: Annotated[Weights, BeforeValidator(lambda value: _tagged("kind", value))]
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
    size_class: Literal["small", "medium", "large", "huge"] = "medium"
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
        _check_order(self.transform)
        input_px(self)
        _check_channels(self.transform)
        if self.depth_indices:
            _check_depths(self.depth_indices, self.blocks)
        if self.lora_targets is not None:
            _check_pattern(self.lora_targets)
        return self


def _check_order(steps: Sequence[Step]) -> None:
    kinds = [step.step for step in steps]
    if not kinds or kinds[0] != "convert" or kinds.count("scale") != 1:
        raise ValueError("transform: starts with convert and has scale exactly once")
    scale = kinds.index("scale")
    image = {"convert", "stretch", "resize", "pad", "crop"}
    misplaced = [k for i, k in enumerate(kinds) if i != scale and (k in image) != (i < scale)]
    if misplaced:
        raise ValueError(
            f"transform: {misplaced[0]} is on the wrong side of scale; "
            f"{', '.join(sorted(image))} come before it, the rest after it"
        )


def _check_channels(steps: Sequence[Step]) -> None:
    channels = 0
    for step in steps:
        if isinstance(step, Convert):
            channels = {"RGB": 3, "L": 1}[step.mode]
        elif isinstance(step, Repeat):
            if channels != 1:
                raise ValueError(f"transform: repeat needs one channel, here are {channels}")
            channels = step.channels
        elif isinstance(step, Normalise):
            _check_length(step.mean, channels, "normalise.mean")
            _check_length(step.std, channels, "normalise.std")
        elif isinstance(step, Pad):
            _check_length(step.fill, channels, "pad.fill")


def _check_length(values: Sequence[float], channels: int, key: str) -> None:
    if len(values) not in (1, channels):
        raise ValueError(f"transform: {key} has {len(values)} values for {channels} channels")


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
    side: int | None = None
    square = False
    for step in card.transform:
        if isinstance(step, Resize) and step.side != "both":
            side = step.size_px if square else None
        elif isinstance(step, Pad) and step.to == "longer":
            square = True
        elif isinstance(step, Resize | Crop | TensorResize):
            side, square = step.size_px, True
        elif isinstance(step, Pad):
            side, square = int(step.to), True
    if side is None:
        raise ValueError("transform: the size at its end depends on the image; add a crop or a pad")
    return side


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
