"""What synthetic releases are made of: cards that read them, drawn tensors, ways to save them.

A release has few and narrow blocks, the file name, tensor names and nesting of the real one, and
modules that are not wanted.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from vit_layouts import State

from crsbench.config import read_yaml
from crsbench.encoders.cards import EncoderCard, input_px, load_cards
from crsbench.encoders.weights import write_weights

ROOT = Path(__file__).parents[2]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(ROOT / "config" / "config.yaml")["encoders"]


@dataclass
class Release:
    """A synthetic release: a card that reads it, what it holds, and what must come of it.

    `wanted` are the tensors of the encoder under timm's names, as float32, and `reference` gives
    its features from them by a second implementation. `key` is a tensor that the encoder needs,
    and `becomes` its name in the architecture, or where it is looked for.
    """

    card: EncoderCard
    state: State
    save: Callable[[State], None]
    wanted: State
    reference: Callable[[torch.Tensor], torch.Tensor]
    key: str
    becomes: str

    def write(self) -> None:
        self.save(self.state)


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def released_file(name: str, folder: Path) -> Path:
    return folder / Path(CARDS[name].weights.file).name


def local(name: str, path: Path, **options: object) -> EncoderCard:
    """Return a published card that reads `path`, with the architecture's size changed."""
    card = CARDS[name]
    weights = {"kind": "file", "path": str(path)}
    feature = {"pool": card.feature.pool}  # of another dimension than the full encoder's
    return edited(card, weights=weights, options=options, feature=feature)


def written(release: Release, folder: Path) -> Path:
    release.write()
    path = folder / "converted" / "weights.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_weights(release.card, path)
    return path


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter and running mean a value of its own, so that none is a default."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and "running_var" not in name:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return module.eval()


def batch(card: EncoderCard) -> torch.Tensor:
    """Return two images of the size that the encoder takes; a ResNet takes any, so a small one."""
    side = card.options.get("image_size", card.options.get("img_size", input_px(card)))
    side = 96 if card.architecture.startswith("resnet") else side
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def prefixed(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def pickled(path: Path) -> Callable[[State], None]:
    return lambda state: torch.save(state, path)


def safetensors(path: Path) -> Callable[[State], None]:
    return lambda state: save_file({k: v.contiguous() for k, v in state.items()}, path)


def sharded(index_path: Path, place: Callable[[str], str]) -> Callable[[State], None]:
    """Save shards by `place` (name of a tensor to name of a shard) and their index."""

    def save(state: State) -> None:
        shards: dict[str, State] = {}
        for name, tensor in state.items():
            shards.setdefault(place(name), {})[name] = tensor.contiguous()
        weight_map = {name: shard for shard, part in shards.items() for name in part}
        index_path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        for shard, part in shards.items():
            if "language" not in shard:  # what must not be read is not even there
                save_file(part, index_path.parent / shard)

    return save
