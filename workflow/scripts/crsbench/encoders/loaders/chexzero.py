"""CheXzero: the vision tower of an OpenAI CLIP state, as a timm ViT.

The release is a plain dictionary of 302 tensors, mostly float16. The tower stands below
``visual.``; the projection and the text tower are left out.
"""

import timm
from torch import nn

from crsbench.encoders.cards import EncoderCard
from crsbench.encoders.loaders import checkpoint, vision_transformer

features_at_depths = vision_transformer.features_at_depths

OTHER_PARTS = (
    r"transformer\..*|token_embedding\.weight|positional_embedding|ln_final\..*"
    r"|text_projection|logit_scale"
)
RENAMING = (
    (r"^conv1\.", "patch_embed.proj."),
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^ln_pre\.", "norm_pre."),
    (r"^ln_post\.", "norm."),
    (r"^transformer\.resblocks\.", "blocks."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.attn\.in_proj_", ".attn.qkv."),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)


def load_source(card: EncoderCard) -> tuple[checkpoint.State, checkpoint.Source]:
    """Return the tensors of the tower, and where they came from."""
    path, source = checkpoint.fetch(card)
    state = checkpoint.read_checkpoint(path, card)
    tower = checkpoint.below(state, "visual.", ignored=OTHER_PARTS, owner=card.name)
    tower = checkpoint.renamed(checkpoint.without(tower, ["proj"], card.name), RENAMING)
    tokens: checkpoint.State = {
        name: tower[name].reshape(1, -1, tower[name].shape[-1])
        for name in ("cls_token", "pos_embed")
        if name in tower
    }
    return {**tower, **tokens}, source


def build(card: EncoderCard) -> nn.Module:
    """Return the tower; its feature is the class token after the norm, before the projection."""
    checkpoint.require_pool(card, "cls")
    return timm.create_model(card.architecture, pretrained=False, num_classes=0, **card.options)
