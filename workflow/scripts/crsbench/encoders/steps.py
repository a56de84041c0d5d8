"""Input transforms as a card writes them: a list of steps, or the short form of one.

Image steps work on 8-bit Pillow images, ``scale`` turns the image into a float32 tensor, tensor
steps follow. Every number of a transform stands in its card; a step has a default only where the
releases agree on it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from crsbench.config import Model
from crsbench.encoders.shorthand import tagged

Pixels = Annotated[int, Field(gt=0)]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

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


def _with_tuples(value: Any, key: str) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get(key), int | float):
        return {**value, key: (value[key],)}
    return value


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
    return (
        [tagged("step", step, bare=BARE_FIELDS) for step in steps]
        if isinstance(steps, list)
        else steps
    )


Transform = Annotated[tuple[Step, ...], BeforeValidator(_tagged_steps)]


def check_order(steps: Sequence[Step]) -> None:
    """Refuse steps that do not start with a conversion or stand on the wrong side of scale."""
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


def check_crops(steps: Sequence[Step]) -> None:
    """Refuse a crop that is larger than the shorter side can be: it would add a black border.

    After a resize of any kind the shorter side has at most its size. Whether an image of unknown
    size is large enough shows only when it is cropped.
    """
    at_most: int | None = None
    for step in steps:
        if isinstance(step, Crop) and at_most is not None and step.size_px > at_most:
            raise ValueError(
                f"transform: a crop of {step.size_px} px, but the shorter side has at most "
                f"{at_most} px there, so the crop would add a black border; resize to at least the "
                "crop (resize_px, crop_px), or pad before it"
            )
        if isinstance(step, Resize | Crop):
            at_most = step.size_px
        elif isinstance(step, Pad):
            at_most = None if step.to == "longer" else int(step.to)


def check_channels(steps: Sequence[Step]) -> None:
    """Refuse steps whose values do not match the channels that they get."""
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


def output_px(steps: Sequence[Step]) -> int:
    """Return the side of the square tensor that a transform ends with, in pixels."""
    side: int | None = None
    square = False
    for step in steps:
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
