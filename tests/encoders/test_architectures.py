"""Every published encoder at full size without memory: names and shapes, cost, layers to adapt.

Names and shapes are compared with the network of the same design in another library, and with a
digest, so that an upgrade that renames or reshapes a tensor is seen.
"""

import hashlib
import re
from typing import NamedTuple

import open_clip
import pytest
import timm
import torch
import torchvision
import transformers
from open_clip.model import _build_vision_tower
from releases import beit
from synthetic_release import CARDS, PUBLISHED
from torch.utils.flop_counter import FlopCounterMode
from vit_layouts import State, as_timm

from crsbench.encoders.cards import input_px
from crsbench.encoders.weights import build_encoder

pytestmark = pytest.mark.usefixtures("no_sockets")


class Expected(NamedTuple):
    """What an encoder has: tensors, layers that LoRA adapts, and the digest of its `layout`.

    LoRA adapts four layers of each block of a ViT, six of one of transformers, three of each
    bottleneck; LLaVA-Med's last block has no part in its feature.
    """

    n_tensors: int
    n_adapted: int
    layout: str


EXPECTED = {
    "resnet50": Expected(318, 48, "8d26041d6c34dc6eb4d92d0a0a8f9b50"),
    "vit_b16": Expected(150, 48, "279bdab91b4dd08c7693eec291c66836"),
    "clip_b16": Expected(151, 48, "309a3083542b57e3328362d542652a9a"),
    "siglip_b16": Expected(162, 48, "fbfa652ebfb3026332781c6c39b3ade4"),
    "dinov2_b14": Expected(174, 48, "5535369f8419783595e307b0ba62f776"),
    "mae_b16": Expected(150, 48, "279bdab91b4dd08c7693eec291c66836"),
    "biomedclip": Expected(150, 48, "279bdab91b4dd08c7693eec291c66836"),
    "llava_med": Expected(391 + 4, 138, "9f9e16b539bea0896a07d3ea71883fbe"),
    "medsiglip": Expected(448, 162, "3fa737508cd39ca286f88c3c05495e04"),
    "medgemma": Expected(437 + 2, 162, "637cf7361f4fe05e4af37dd3a04aa02e"),
    "panderm": Expected(366 - 24, 96, "29a81d8bb60f9ba8324558f370691b87"),
    "retfound": Expected(294, 96, "582367726b0d14018c79657b217bae9e"),
    "rad_dino": Expected(223, 72, "22069899b1c2f020299255a1773dd854"),
    "biovil": Expected(318, 48, "8d26041d6c34dc6eb4d92d0a0a8f9b50"),
    "chexzero": Expected(151, 48, "384ad76068f497aefd7e2e927aac9a41"),
}


def layout(state: State) -> str:
    """Return the first half of the SHA-256 of the lines "name shape", sorted."""
    lines = sorted(f"{name} {tuple(tensor.shape)}\n" for name, tensor in state.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_full_architecture_is_what_the_card_says(name):
    card = CARDS[name]
    side = input_px(card)
    with torch.device("meta"), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        module = build_encoder(card).eval()
        features = module(torch.empty(1, 3, side, side))
    assert features.shape == (1, card.feature.dim)
    layers = [
        layer for layer, _ in module.named_modules() if re.fullmatch(card.lora_targets, layer)
    ]
    state = module.state_dict()
    assert Expected(len(state), len(layers), layout(state)) == EXPECTED[name]
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    assert card.cost.parameters_m == pytest.approx(n_parameters / 1e6, abs=0.06)
    assert card.cost.gflops == pytest.approx(counter.get_total_flops() / 1e9, abs=0.06)


def torchvision_resnet50() -> State:
    model = torchvision.models.resnet50()
    model.fc = torch.nn.Identity()
    return model.state_dict()


def transformers_vit(**size: int) -> State:
    config = transformers.ViTConfig(**size)
    return transformers.ViTModel(config, add_pooling_layer=False).state_dict()


def mean_pooling_vit_large() -> State:
    size = {"hidden_size": 1024, "intermediate_size": 4096}
    state = transformers_vit(**size, num_hidden_layers=24, num_attention_heads=16)
    return {name.replace("layernorm.", "fc_norm."): tensor for name, tensor in state.items()}


def openai_tower(architecture: str) -> State:
    settings = open_clip.get_model_config(architecture)
    tower = _build_vision_tower(settings["embed_dim"], settings["vision_cfg"], quick_gelu=True)
    tower.proj = None
    return tower.state_dict()


def dinov2_base_without_mask_token() -> State:
    config = transformers.Dinov2Config(image_size=224, patch_size=14)
    state = transformers.Dinov2Model(config).state_dict()
    del state["embeddings.mask_token"]
    return state


def siglip_base() -> State:
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig()).state_dict()


def siglip_so400m(image_px: int, **options: str) -> State:
    name = "vit_so400m_patch14_siglip_384"
    return timm.create_model(name, num_classes=0, img_size=image_px, **options).state_dict()


def dinov2_base_with_mask_token() -> State:
    state = timm.create_model("vit_base_patch14_dinov2", num_classes=0).state_dict()
    return {**state, "embeddings.mask_token": torch.empty(1, 768)}


def llava_tower_and_projector() -> State:
    projector = {"0": torch.nn.Linear(1024, 4096), "2": torch.nn.Linear(4096, 4096)}
    state = torch.nn.ModuleDict({"projector": torch.nn.ModuleDict(projector)}).state_dict()
    return {**openai_tower("ViT-L-14-336-quickgelu"), **state}


def gemma_tower_and_projector() -> State:
    return {
        **siglip_so400m(896, global_pool=""),
        "projector.mm_input_projection_weight": torch.empty(1152, 2560),
        "projector.mm_soft_emb_norm.weight": torch.empty(1152),
    }


#: The network of the same design in a library that the encoder's loader does not use; for PanDerm
#: timm's BEiT, which is another class than the loader's.
ELSEWHERE = {
    "resnet50": torchvision_resnet50,
    "vit_b16": transformers_vit,
    "clip_b16": lambda: openai_tower("ViT-B-16-quickgelu"),
    "siglip_b16": siglip_base,
    "dinov2_b14": dinov2_base_without_mask_token,
    "mae_b16": transformers_vit,
    "biomedclip": transformers_vit,
    "llava_med": llava_tower_and_projector,
    "medsiglip": lambda: siglip_so400m(448),
    "medgemma": gemma_tower_and_projector,
    "panderm": lambda: beit(embed_dim=1024, depth=24, num_heads=16).state_dict(),
    "retfound": mean_pooling_vit_large,
    "rad_dino": dinov2_base_with_mask_token,
    "biovil": torchvision_resnet50,
    "chexzero": lambda: openai_tower("ViT-B-32-quickgelu"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_has_the_name_and_shape_of_the_same_network_elsewhere(name):
    with torch.device("meta"):
        found = as_timm(build_encoder(CARDS[name]).state_dict())
        expected = as_timm(ELSEWHERE[name]())
    shapes = {key: tuple(tensor.shape) for key, tensor in found.items()}
    assert shapes == {key: tuple(tensor.shape) for key, tensor in expected.items()}
