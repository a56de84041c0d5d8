"""Every published encoder at full size, one image through all of it (``make acceptance``).

The weights are drawn, because no release is needed to see that the real network runs in float32,
gives finite features of the declared size, and that its depth features end with the feature.
"""

from pathlib import Path

import pytest
import torch

from crsbench.card_check import sample_image
from crsbench.config import read_yaml
from crsbench.encoders.cards import load_cards
from crsbench.encoders.transforms import build_transform
from crsbench.encoders.weights import build_encoder, depth_function

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
PUBLISHED = read_yaml(ROOT / "config" / "config.yaml")["encoders"]


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    """Give every weight a value of its own: some are built as zeros."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return module.eval().requires_grad_(False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_whole_network_runs_and_its_depth_features_end_with_the_feature(name):
    card = CARDS[name]
    module = drawn(build_encoder(card))
    image = build_transform(card.transform)(sample_image())[None]
    with torch.inference_mode():
        feature = module(image)
        depths = []
        if card.depth_indices:
            depths = depth_function(card)(module, image, card.depth_indices)
    assert feature.shape == (1, card.feature.dim)
    assert torch.isfinite(feature).all()
    assert feature.std() > 0
    assert len(depths) == len(card.depth_indices)
    if depths:
        assert torch.equal(depths[-1], feature)
        assert len({depth.sum().item() for depth in depths}) == len(depths)
