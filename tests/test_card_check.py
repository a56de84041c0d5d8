"""A card to check: all of it, what its transform does, and the picture that the encoder sees."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from crsbench.card_check import check_card, seen_picture
from crsbench.cli import main
from crsbench.encoders.cards import EncoderCard, card_digest, load_cards
from crsbench.errors import WeightsError

ROOT = Path(__file__).parents[1]
CARDS = load_cards([ROOT / "config" / "encoders.yaml"])
SHORT = """
mine:
  label: Mine
  loader: timm
  architecture: test_vit.r160_in1k
  options: {img_size: 64}
  transform: {resize_px: 72, crop_px: 64, interpolation: bicubic, normalise: half}
"""


def edited(card: EncoderCard, **changes: object) -> EncoderCard:
    return EncoderCard.model_validate({**card.model_dump(), **changes})


def gradient(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, 0 * rows + 90], axis=2)
    return pixels.astype(np.uint8)


def checked(card: EncoderCard, folder: Path) -> tuple[dict, list[str]]:
    lines = list(check_card(card, None, picture=folder / "seen.png", max_side_px=1024))
    return yaml.safe_load("\n".join(lines)), lines


def test_the_filled_card_is_a_card_of_the_same_encoder(tmp_path):
    short = tmp_path / "short.yaml"
    short.write_text(SHORT)
    card = load_cards([short])["mine"]
    entry, lines = checked(card, tmp_path)
    filled = tmp_path / "filled.yaml"
    filled.write_text("\n".join(lines))
    assert card_digest(load_cards([filled])["mine"]) == card_digest(card)
    assert set(entry["mine"]) == set(EncoderCard.model_fields) - {"name"}
    assert entry["mine"]["weights"]["hub"]["repo"] == "timm/test_vit.r160_in1k"
    assert entry["mine"]["transform"][0] == {"convert": {"mode": "RGB"}}
    assert "# unpinned: revision main can move, and no digest is known" in lines


@pytest.mark.parametrize("name", CARDS)
def test_every_filled_card_is_read_as_the_same_card(name, monkeypatch, tmp_path):
    monkeypatch.setattr("crsbench.card_check._network_lines", lambda _: iter(()))
    _, lines = checked(CARDS[name], tmp_path)
    filled = tmp_path / "filled.yaml"
    filled.write_text("\n".join(lines))
    assert load_cards([filled]) == {name: CARDS[name]}


def test_what_every_step_does_and_what_comes_out_is_printed(tmp_path):
    _, lines = checked(CARDS["tiny_vit"], tmp_path)
    assert "# image: RGB, 640 x 480 px" in lines
    assert "# after resize: RGB, 64 x 64 px" in lines
    assert any(line.startswith("# input: float32 (3, 64, 64), from -") for line in lines)
    assert "# feature: (1, 64), feature.dim is 64" in lines
    (cost,) = [line for line in lines if line.startswith("# tensors: ")]
    assert cost.endswith("parameters_m: 0.3009}")


def test_a_network_without_parameters_is_run_too(tmp_path):
    _, lines = checked(CARDS["tiny_statistics"], tmp_path)
    assert "# feature: (1, 87), feature.dim is 87" in lines


@pytest.mark.parametrize(("name", "mode"), [("vit_b16", "squash"), ("medsiglip", "squash")])
def test_a_squash_keeps_the_whole_image(name, mode):
    seen = np.asarray(seen_picture(CARDS[name], gradient(300, 400))).astype(int)
    assert seen[:, 0, 1].max() < 5
    assert seen[:, -1, 1].min() > 250


def test_normalisation_is_undone_and_the_rest_is_not():
    pixels = gradient(300, 400)
    for name in ("resnet50", "panderm", "rad_dino", "clip_b16"):
        seen = np.asarray(seen_picture(CARDS[name], pixels)).astype(int)
        side = seen.shape[0]
        offset = (round(400 * 256 / 300) - 256) / 2 if name in ("resnet50", "panderm") else None
        assert abs(seen[side // 2, side // 2, 2] - 90) <= 1, name
        assert abs(seen[side // 2, side // 2, 0] - 127) <= 2, name
        assert offset is None or seen[:, 0, 1].min() > 20, name


@pytest.mark.parametrize("name", ["biovil", "chexzero"])
def test_a_grey_encoder_is_shown_grey(name):
    seen = np.asarray(seen_picture(CARDS[name], gradient(300, 400)))
    assert np.ptp(seen.astype(int), axis=2).max() == 0
    assert np.ptp(seen) > 100


def test_chexzero_sees_its_padding_black():
    seen = np.asarray(seen_picture(CARDS["chexzero"], gradient(200, 400) // 2 + 100))
    assert seen[:40].max() <= 8
    assert seen[112, 112].min() > 90


def test_a_wrong_dimension_is_an_error_after_all_lines(tmp_path):
    wrong = edited(CARDS["tiny_vit"], feature={"pool": "cls", "dim": 65})
    lines = check_card(wrong, None, picture=tmp_path / "seen.png", max_side_px=1024)
    with pytest.raises(WeightsError, match=r"feature\.dim is 65, but the network gives 64"):
        list(lines)
    assert (tmp_path / "seen.png").is_file()


def test_an_input_that_the_network_refuses_is_one_line(tmp_path):
    large = CARDS["vit_b16"].model_dump()["transform"]
    wrong = edited(CARDS["untrained_vit_tiny"], transform=large)
    lines = check_card(wrong, None, picture=tmp_path / "seen.png", max_side_px=1024)
    with pytest.raises(
        WeightsError, match="untrained_vit_tiny: the network cannot be built or run: Input"
    ):
        list(lines)


def test_the_verb_takes_an_image_and_writes_the_picture(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    Image.fromarray(gradient(120, 160)).save(tmp_path / "mine.png")
    store = ("--config", f"store={tmp_path}")
    assert main(["card", "tiny_vit", "--image", str(tmp_path / "mine.png"), *store]) == 0
    assert "# image: RGB, 160 x 120 px" in capsys.readouterr().out
    picture = Image.open(tmp_path / "cards" / "tiny_vit.png")
    assert (picture.mode, picture.size) == ("RGB", (64, 64))
    corners = np.asarray(picture).astype(int)
    assert corners[0, 0, 0] < 10 < 240 < corners[-1, -1, 0]


def test_an_unknown_name_is_refused_with_those_that_there_are(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["card", "resnet51"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("crsbench: card resnet51: not defined in config/encoders.yaml; ")
    assert "docs/add-an-encoder.md), or name its file in encoder_definitions" in message
    assert ", or take one of resnet50, vit_b16, " in message
