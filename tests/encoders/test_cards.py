"""The cards of the project, and what happens to a wrong one."""

import csv
import re
from pathlib import Path

import pytest

from crsbench.encoders.cards import (
    EncoderCard,
    card_digest,
    input_px,
    load_cards,
    transform_digest,
    weights_identity,
)
from crsbench.errors import ConfigError

ROOT = Path(__file__).parents[2]
DEFINITIONS = ROOT / "config" / "encoders.yaml"

PUBLISHED = {
    # name: (label, group, domain, input px, dimension, blocks)
    "resnet50": ("ResNet-50", "generalist", None, 224, 2048, None),
    "vit_b16": ("ViT-B/16", "generalist", None, 224, 768, 12),
    "clip_b16": ("CLIP", "generalist", None, 224, 768, 12),
    "siglip_b16": ("SigLIP", "generalist", None, 224, 768, 12),
    "dinov2_b14": ("DINOv2", "generalist", None, 224, 768, 12),
    "mae_b16": ("MAE", "generalist", None, 224, 768, 12),
    "biomedclip": ("BiomedCLIP", "broad_medical", None, 224, 768, 12),
    "llava_med": ("LLaVA-Med", "medical_multimodal", None, 336, 1024, 24),
    "medsiglip": ("MedSigLIP", "broad_medical", None, 448, 1152, 27),
    "medgemma": ("MedGemma", "medical_multimodal", None, 896, 2560, 27),
    "panderm": ("PanDerm", "specialty", "dermatology", 224, 1024, 24),
    "retfound": ("RETFound", "specialty", "ophthalmology", 224, 1024, 24),
    "rad_dino": ("RAD-DINO", "specialty", "radiology", 224, 768, 12),
    "biovil": ("BioViL", "specialty", "radiology", 480, 2048, None),
    "chexzero": ("CheXzero", "specialty", "radiology", 224, 768, 12),
}

#: An edit that changes one of these makes weights and features of that encoder anew.
CARD_DIGESTS = {
    "resnet50": "dbc9cb060c61",
    "vit_b16": "d0c96866807e",
    "clip_b16": "cad486f36334",
    "siglip_b16": "a25b3f8853d4",
    "dinov2_b14": "9fbd3ea11fbb",
    "mae_b16": "aeef1701cc30",
    "biomedclip": "43f56ecd960d",
    "llava_med": "ab782f83015a",
    "medsiglip": "ec04b75cedb2",
    "medgemma": "e6fa25531109",
    "panderm": "6df019058c19",
    "retfound": "0f3e83d819da",
    "rad_dino": "d8a558be8af8",
    "biovil": "aa598f818ca4",
    "chexzero": "cf8ef9e4f762",
    "efficientnet_lite0": "006462a62ca1",
    "untrained_vit_tiny": "2f2a2dd68a0a",
    "tiny_statistics": "ea7961d3e4d9",
}

SHORTEST = """
my_vit:
  label: My ViT
  loader: timm
  architecture: vit_small_patch16_224.augreg_in21k_ft_in1k
  transform: {resize_px: 248, crop_px: 224, interpolation: bicubic, normalise: half}
"""


@pytest.fixture(scope="module")
def cards() -> dict[str, EncoderCard]:
    return load_cards([DEFINITIONS])


def card_from(text: str, folder: Path) -> EncoderCard:
    path = folder / "own.yaml"
    path.write_text(text)
    (card,) = load_cards([path]).values()
    return card


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def test_the_fifteen_published_encoders_come_first_in_the_papers_groups(cards):
    assert list(cards)[:15] == list(PUBLISHED)
    for name, (label, group, domain, px, dim, blocks) in PUBLISHED.items():
        card = cards[name]
        found = (card.label, card.group, card.domain, input_px(card), card.feature.dim, card.blocks)
        assert found == (label, group, domain, px, dim, blocks), name


def test_labels_and_groups_are_those_of_table_2(cards):
    table = ROOT.parent / "shared" / "paper" / "table2.csv"
    if not table.is_file():
        pytest.skip("the paper's tables are not beside the project")
    with table.open() as handle:
        published = {row["encoder"]: row["group"] for row in csv.DictReader(handle)}
    assert {cards[name].label: cards[name].group for name in PUBLISHED} == published


def test_only_biovil_and_chexzero_have_no_aptos_cell(cards):
    skipping = {name for name in PUBLISHED if cards[name].skip_datasets}
    assert skipping == {"biovil", "chexzero"}
    assert cards["biovil"].skip_datasets == cards["chexzero"].skip_datasets == ("aptos2019",)


def test_gated_encoders_name_the_page_that_grants_access(cards):
    gated = {name for name in PUBLISHED if cards[name].gated}
    assert gated == {"medsiglip", "medgemma", "retfound"}
    assert all(cards[name].gated.startswith("https://huggingface.co/") for name in gated)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("resnet50", "resnet50.tv_in1k"),
        ("vit_b16", "vit_base_patch16_224.augreg_in21k"),
        ("clip_b16", "vit_base_patch16_clip_quickgelu_224.openai"),
        ("siglip_b16", "vit_base_patch16_siglip_224.webli"),
        ("dinov2_b14", "vit_base_patch14_dinov2.lvd142m"),
        ("mae_b16", "vit_base_patch16_224.mae"),
    ],
)
def test_timm_tags_are_pinned_because_the_default_ones_are_other_weights(cards, name, tag):
    assert cards[name].architecture == tag


def test_depth_indices_are_at_quarters_of_the_blocks_that_the_feature_uses(cards):
    for name in PUBLISHED:
        card = cards[name]
        if card.blocks is None:
            assert card.depth_indices == ()
            continue
        used = 23 if name == "llava_med" else card.blocks
        quarters = [round(share * card.blocks) - 1 for share in (0.25, 0.5, 0.75)]
        assert card.depth_indices == (*quarters, used - 1), name


@pytest.mark.parametrize(
    ("blocks", "indices", "message"),
    [
        (12, (2, 5, 11), "four blocks, rising"),
        (12, (5, 2, 8, 11), "four blocks, rising"),
        (12, (2, 5, 8, 12), "all must be below blocks = 12"),
        (None, (2, 5, 8, 11), "all must be below blocks = None"),
    ],
)
def test_depth_indices_that_are_no_quarters_are_refused(cards, blocks, indices, message):
    entry = {**cards["vit_b16"].model_dump(), "blocks": blocks, "depth_indices": indices}
    with pytest.raises(ValueError, match=message):
        EncoderCard.model_validate(entry)


def test_every_published_transform_is_written_step_by_step():
    text = DEFINITIONS.read_text()
    assert not re.search(r"^    *resize_px", text, re.MULTILINE)


def test_licences_sources_and_weights_of_the_published_encoders_are_stated(cards):
    for name in PUBLISHED:
        card = cards[name]
        assert card.licence != "not stated", name
        assert card.source.startswith("https://"), name
        assert card.weights.kind in {"hub", "drive"}, name


def test_the_shortest_entry_is_a_whole_card(tmp_path):
    card = card_from(SHORTEST, tmp_path)
    assert card.weights.repo == "timm/vit_small_patch16_224.augreg_in21k_ft_in1k"
    assert [step.step for step in card.transform] == [
        "convert", "resize", "crop", "scale", "normalise",
    ]  # fmt: skip
    assert card.transform[1].side == "shorter"
    assert card.transform[4].mean == (0.5, 0.5, 0.5)
    assert input_px(card) == 224


def test_without_a_crop_the_short_transform_squashes(tmp_path):
    card = card_from(SHORTEST.replace("crop_px: 224, ", ""), tmp_path)
    assert (card.transform[1].side, input_px(card)) == ("both", 248)


def test_a_users_file_extends_the_projects(cards, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(SHORTEST)
    assert list(load_cards([DEFINITIONS, own])) == [*cards, "my_vit"]


def test_a_name_in_two_files_is_refused_with_both_files(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(SHORTEST.replace("my_vit", "resnet50"))
    with pytest.raises(ConfigError, match=r"own\.yaml: encoder resnet50 .*encoders\.yaml"):
        load_cards([DEFINITIONS, own])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("label: My ViT", "lable: My ViT", r"own\.yaml: encoder my_vit: lable: unknown key.*label"),
        ("  label: My ViT\n", "", "my_vit: label: missing"),
        ("loader: timm", "loader: Timm!", "my_vit: loader: 'Timm!' is unknown; allowed: .*timm"),
        (".augreg_in21k_ft_in1k", "", "no weight tag"),
        ("bicubic", "cubic", r"transform\.1\.resize\.interpolation: .*'bicubic'.*got 'cubic'"),
        ("half", "halves", "'halves' names no statistics; allowed: imagenet, clip, half"),
        ("crop_px", "crop", "short form: crop unknown or missing"),
        (", normalise: half", "", "short form: normalise unknown or missing"),
        ("my_vit:", "My-ViT:", "encoder My-ViT: name: "),
        (
            "loader",
            "weights: {hubb: x}\n  loader",
            "weights: .* known kind: {'hubb': 'x'}; docs/add",
        ),
        ("loader", "weights: hubb\n  loader", "'hubb' is unknown; allowed: hub, package, drive"),
    ],
)
def test_each_fault_is_one_line_with_file_encoder_key_and_what_is_allowed(
    tmp_path, old, new, message
):
    assert old in SHORTEST
    with pytest.raises(ConfigError, match=message) as caught:
        card_from(SHORTEST.replace(old, new, 1), tmp_path)
    for line in str(caught.value).splitlines():
        assert line.startswith(f"{tmp_path / 'own.yaml'}: encoder ")


STEPS = "transform: [{convert: RGB}, {resize: {size_px: 8, side: both, interpolation: box}}, "


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("{normalise: half}]", "scale exactly once"),
        ("{normalise: half}, {scale: unit}]", "normalise is on the wrong side of scale"),
        ("{scale: unit}, {crop: 4}]", "crop is on the wrong side of scale"),
        ("{scale: unit}, {repeat: 3}]", "repeat needs one channel, here are 3"),
        ("{scale: unit}, {normalise: {mean: [0, 0], std: 1}}]", "2 values for 3 channels"),
        ("{scale: unit}, {normalise: {mean: 0, sd: 1}}]", "sd: unknown key; allowed: mean, std"),
        ("{scale: unit}, {blur: 3}]", r"transform\.3: not one entry of a known kind: .*'blur': 3"),
        ("{scale: unit}, {blur: {px: 3}}]", "'blur' is unknown; allowed: convert, stretch, resiz"),
    ],
)
def test_a_transform_that_cannot_work_is_refused(tmp_path, rest, message):
    text = re.sub(r"transform: .*", lambda _: STEPS + rest, SHORTEST)
    with pytest.raises(ConfigError, match=message):
        card_from(text, tmp_path)


@pytest.mark.parametrize(
    ("before", "size", "refused"),
    [
        ("resize: {size_px: 224, side: shorter, interpolation: box}", 224, False),
        ("resize: {size_px: 224, side: shorter, interpolation: box}", 225, True),
        ("resize: {size_px: 224, side: both, interpolation: box}", 248, True),
        ("resize: {size_px: 224, side: longer, interpolation: box}", 248, True),
        ("crop: 96", 97, True),
        (
            "resize: {size_px: 8, side: longer, interpolation: box}, pad: {to: 32, fill: 0}",
            32,
            False,
        ),
        (
            "resize: {size_px: 8, side: longer, interpolation: box}, pad: {to: 32, fill: 0}",
            33,
            True,
        ),
        ("pad: {to: longer, fill: 0}", 500, False),
    ],
)
def test_a_crop_that_would_add_a_black_border_is_refused(before, size, refused, tmp_path):
    steps = f"transform: [convert: RGB, {before}, crop: {size}, scale: unit]"
    text = re.sub(r"transform: .*", lambda _: steps, SHORTEST)
    if refused:
        with pytest.raises(ConfigError, match=rf"my_vit: .*a crop of {size} px, but"):
            card_from(text, tmp_path)
    else:
        assert input_px(card_from(text, tmp_path)) == size


def test_a_short_transform_does_not_crop_more_than_it_resizes_to(tmp_path):
    with pytest.raises(ConfigError, match=r"a crop of 248 px, .* at most 224 px .*crop_px"):
        card_from(SHORTEST.replace("248, crop_px: 224", "224, crop_px: 248"), tmp_path)


def test_a_transform_whose_size_depends_on_the_image_is_refused(tmp_path):
    steps = "transform: [convert: RGB, resize: {size_px: 8, side: shorter, interpolation: box}, "
    text = re.sub(r"transform: .*", lambda _: steps + "scale: unit]", SHORTEST)
    with pytest.raises(ConfigError, match="the size at its end depends on the image"):
        card_from(text, tmp_path)


def test_a_missing_file_of_definitions_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file of encoder definitions"):
        load_cards([tmp_path / "absent.yaml"])


@pytest.mark.parametrize("name", CARD_DIGESTS)
def test_the_digests_of_cards_are_the_known_ones(cards, name):
    assert card_digest(cards[name]).startswith(CARD_DIGESTS[name])


def test_words_and_terms_leave_every_digest_alone(cards):
    card = cards["resnet50"]
    other = edited(card, label="R50", licence="other", gated="page", lora_targets=None)
    assert card_digest(other) == card_digest(card)
    assert weights_identity(other) == weights_identity(card)


@pytest.mark.parametrize("name", ["resnet50", "biovil", "chexzero", "llava_med"])
def test_changing_any_declared_step_changes_the_transform_digest(cards, name):
    card = cards[name]
    digests = {transform_digest(card)}
    numbers = {"size_px": 7, "channels": 2, "mean": (0.1,), "std": (0.2,), "fill": (9,), "to": None}
    words = {"interpolation": "box", "offset": None, "side": None, "antialias": None, "mode": None}
    n_changes = 1
    for position, step in enumerate(card.transform):
        for key, value in {**numbers, **words}.items():
            if value is None or key not in type(step).model_fields or step.step == "tensor_resize":
                continue
            changed = list(card.transform)
            changed[position] = step.model_copy(update={key: value})
            digests.add(transform_digest(card.model_copy(update={"transform": tuple(changed)})))
            n_changes += 1
    assert len(digests) == n_changes > 3


def test_transform_feature_and_dtype_enter_the_card_digest_but_not_the_weights(cards):
    card = cards["vit_b16"]
    others = [
        edited(card, dtype="bfloat16"),
        edited(card, feature={"pool": "mean", "dim": 768}),
        edited(card, transform=cards["clip_b16"].model_dump()["transform"]),
    ]
    assert len({card_digest(other) for other in [card, *others]}) == 4
    assert {weights_identity(other) for other in others} == {weights_identity(card)}


def test_weights_options_and_architecture_enter_the_weights_identity(cards):
    card = cards["untrained_resnet"]
    others = [
        edited(card, weights={"kind": "random", "seed": 1}),
        edited(card, options={}),
        edited(card, architecture="resnet18"),
    ]
    assert len({weights_identity(other) for other in [card, *others]}) == 4
