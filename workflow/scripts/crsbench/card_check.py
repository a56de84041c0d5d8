"""An encoder's card to check: all that it says, what its transform and its network make of it.

Everything printed is YAML: the whole card, and what was found as comments.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from crsbench.datasets.phantom import KINDS
from crsbench.encoders.cards import EncoderCard, card_digest, input_px, transform_digest
from crsbench.encoders.presence import unpinned_reason
from crsbench.encoders.steps import Normalise, Scale
from crsbench.encoders.transforms import apply_image_steps, build_transform
from crsbench.encoders.weights import build_encoder
from crsbench.errors import WeightsError
from crsbench.files import written_atomically
from crsbench.images import canonical_image

SAMPLE_PX = 640


def check_card(
    card: EncoderCard, image: Path | None, *, picture: Path, max_side_px: int
) -> Iterator[str]:
    """Return the lines of a filled card, and write the picture that the encoder sees.

    Parameters
    ----------
    card
        The encoder.
    image
        An image to look at; without one a synthetic one is drawn.
    picture
        The PNG to write.
    max_side_px
        Longest side of the canonical image.
    """
    pixels = sample_image() if image is None else canonical_image(image, max_side_px=max_side_px)
    entry = card.model_dump(mode="json", exclude={"name"})
    entry["weights"] = _short("kind", entry["weights"])
    entry["transform"] = [_short("step", step) for step in entry["transform"]]
    yield yaml.safe_dump(
        {card.name: entry}, sort_keys=False, allow_unicode=True, width=100
    ).rstrip()
    yield f"# unpinned: {unpinned_reason(card) or 'no'}"
    yield f"# card digest {card_digest(card)}"
    yield f"# transform digest {transform_digest(card)}"
    yield from _transform_lines(card, pixels)
    with written_atomically(picture) as temporary:
        seen_picture(card, pixels).save(temporary, format="PNG")
    yield f"# what the encoder sees of it: {picture}"
    yield from _network_lines(card)


def _short(tag: str, entry: Mapping[str, Any]) -> Any:
    """Return an entry as the guide writes it: its kind, which lies under `tag`, as its key."""
    rest = {key: value for key, value in entry.items() if key != tag}
    return {entry[tag]: rest} if rest else entry[tag]


def sample_image() -> np.ndarray:
    """Return a drawn lesion (480, 640, 3), wider than high: a crop and a squash of it differ."""
    kind = KINDS["dermoscopy"]
    image = kind.draw(kind.plan(16, 0)[0], SAMPLE_PX, 0).convert("RGB")
    return np.asarray(image)[SAMPLE_PX // 8 : -SAMPLE_PX // 8]


def _transform_lines(card: EncoderCard, pixels: np.ndarray) -> Iterator[str]:
    height, width = pixels.shape[:2]
    yield f"# image: RGB, {width} x {height} px"
    kinds = [step.step for step in card.transform]
    for end in range(1, kinds.index("scale") + 1):
        image = apply_image_steps(pixels, card.transform[:end])
        yield f"# after {kinds[end - 1]}: {image.mode}, {image.width} x {image.height} px"
    tensor = build_transform(card.transform)(pixels)
    low, high = float(tensor.min()), float(tensor.max())
    yield f"# input: float32 {tuple(tensor.shape)}, from {low:.3f} to {high:.3f}"


def seen_picture(card: EncoderCard, pixels: np.ndarray) -> Image.Image:
    """Return what the encoder sees of an image as a picture: its input, normalisation undone.

    Parameters
    ----------
    card
        The encoder.
    pixels
        RGB image (H, W, 3), uint8.
    """
    values = build_transform(card.transform)(pixels).numpy().astype(np.float64)
    for step in reversed(card.transform):
        if isinstance(step, Normalise):
            mean, std = (np.reshape(v, (-1, 1, 1)) for v in (step.mean, step.std))
            values = values * std + mean
        elif isinstance(step, Scale) and step.to == "unit":
            values = values * 255
    rounded = np.clip(np.rint(values), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return Image.fromarray(rounded[..., 0] if rounded.shape[2] == 1 else rounded)


def _network_lines(card: EncoderCard) -> Iterator[str]:
    """Build the network without memory, run one image through it, and say what came out."""
    side = input_px(card)
    try:
        with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as count:
            module = build_encoder(card).eval()
            device = "meta" if any(True for _ in module.parameters()) else "cpu"
            features = module(torch.zeros(1, 3, side, side, device=device))
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(f"{card.name}: the network cannot be built or run: {error}") from error
    state = module.state_dict()
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    yield f"# feature: {tuple(features.shape)}, feature.dim is {card.feature.dim or 'not given'}"
    yield f"# tensors: {len(state)}; cost: {{gflops: {count.get_total_flops() / 1e9:.4g}, " + (
        f"parameters_m: {n_parameters / 1e6:.4g}}}"
    )
    if card.feature.dim not in (None, features.shape[1]):
        raise WeightsError(
            f"{card.name}: feature.dim is {card.feature.dim}, but the network gives "
            f"{features.shape[1]}"
        )
