"""Any vision model class of transformers, from a repository or a folder with its ``config.json``.

The architecture is the name of the class (``ViTModel``, ``CLIPVisionModel``). transformers itself
renames the tensors, because it knows the names of older checkpoints; what it reports as missing
or unexpected is refused, save what the option ``ignored_tensors`` (a regular expression) names.
"""

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint
from crsbench.encoders.sources import HubWeights
from crsbench.errors import WeightsError, listed

IGNORED = "ignored_tensors"


class FeatureOf(nn.Module):
    """A model of transformers whose output is the feature alone."""

    def __init__(self, encoder: nn.Module, *, pool: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = pool

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the features (N, D) of a batch (N, 3, H, W)."""
        output = self.encoder(pixel_values)
        if self.pool == "cls":
            tokens = output.last_hidden_state
            if tokens.ndim != 3:
                raise WeightsError(f"{type(self.encoder).__name__} has no tokens; use pool: pooled")
            return tokens[:, 0]
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            raise WeightsError(f"{type(self.encoder).__name__} has no pooler; use pool: cls")
        return pooled.flatten(1)


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the model, and where they came from."""
    path, source = checkpoint.fetch(card)
    if path.name.endswith(".index.json"):
        state, source = checkpoint.read_sharded(card, ".*")
    else:
        state = checkpoint.read_checkpoint(path, card)
    model, report = _class(card).from_pretrained(
        None,  # else it would read the file of its own choice in that folder
        config=_config(card),
        state_dict=state,
        dtype=torch.float32,
        output_loading_info=True,
        **_options(card),
    )
    ignored = str(card.options.get(IGNORED, r"(?!)"))
    surplus = [name for name in report["unexpected_keys"] if not re.fullmatch(ignored, name)]
    faults = [f"missing {name}" for name in sorted(report["missing_keys"])]
    faults += [f"surplus {name}" for name in sorted(surplus)]
    if faults:
        raise WeightsError(f"{card.name}: {path}: {listed(faults)}")
    return {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}, source


def build(card: EncoderCard) -> nn.Module:
    """Return the model; its feature is the pooled output, or the class token."""
    checkpoint.require_pool(card, "pooled", "cls")
    model = _class(card)(_config(card), **_options(card))
    return FeatureOf(model, pool=card.feature.pool)


def _class(card: EncoderCard) -> Any:
    found = getattr(transformers, card.architecture, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise WeightsError(f"{card.name}: transformers has no model class {card.architecture!r}")
    return found


def _config(card: EncoderCard) -> Any:
    if isinstance(card.weights, HubWeights):
        folder = checkpoint.fetch_from_hub(card, "config.json").parent
    else:
        folder = checkpoint.fetch(card)[0].parent
    if not Path(folder, "config.json").is_file():
        raise WeightsError(f"{card.name}: {folder}: no config.json beside the checkpoint")
    return _class(card).config_class.from_pretrained(folder, local_files_only=True)


def _options(card: EncoderCard) -> dict[str, Any]:
    return {key: value for key, value in card.options.items() if key != IGNORED}
