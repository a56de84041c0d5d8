"""Input transforms against torchvision, transformers and golden values of each release."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as tv

from crsbench.config import read_yaml
from crsbench.encoders.cards import EncoderCard, input_px, load_cards
from crsbench.encoders.transforms import build_transform
from crsbench.errors import DataError

DEFINITIONS = Path(__file__).parents[2] / "config" / "encoders.yaml"
CARDS = load_cards([DEFINITIONS])
PUBLISHED = read_yaml(Path(__file__).parents[2] / "config" / "config.yaml")["encoders"]
BICUBIC = tv.InterpolationMode.BICUBIC
BILINEAR = tv.InterpolationMode.BILINEAR
IMAGENET = tv.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = tv.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def picture(height: int, width: int) -> np.ndarray:
    """Return a colourful picture with edges and fine texture, RGB uint8 (H, W, 3)."""
    rows, columns = np.mgrid[:height, :width]
    red = rows * 255 // height
    green = (columns * 7 + rows * 3) % 256
    blue = np.where((rows // 9 + columns // 11) % 2, 230, 20)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def tensor_of(name: str, pixels: np.ndarray) -> torch.Tensor:
    return build_transform(CARDS[name].transform)(pixels)


TORCHVISION = {
    "vit_b16": [
        tv.Resize((224, 224), BILINEAR),
        tv.ToTensor(),
        tv.Normalize((0.5,) * 3, (0.5,) * 3),
    ],
    "mae_b16": [tv.Resize(256, BICUBIC), tv.CenterCrop(224), tv.ToTensor(), IMAGENET],
    "resnet50": [tv.Resize(256, BILINEAR), tv.CenterCrop(224), tv.ToTensor(), IMAGENET],
    "clip_b16": [tv.Resize(224, BICUBIC), tv.CenterCrop(224), tv.ToTensor(), CLIP],
    "biomedclip": [tv.Resize(224, BICUBIC), tv.CenterCrop(224), tv.ToTensor(), CLIP],
    "siglip_b16": [
        tv.Resize((224, 224), BICUBIC),
        tv.ToTensor(),
        tv.Normalize((0.5,) * 3, (0.5,) * 3),
    ],
    "dinov2_b14": [tv.Resize(256, BICUBIC), tv.CenterCrop(224), tv.ToTensor(), IMAGENET],
    "retfound": [tv.Resize(256, BICUBIC), tv.CenterCrop(224), tv.ToTensor(), IMAGENET],
    "panderm": [
        tv.Resize(256),
        tv.CenterCrop(224),
        tv.ToTensor(),
        tv.Normalize((0.485, 0.456, 0.406), (0.228, 0.224, 0.225)),
    ],
}


@pytest.mark.parametrize("name", TORCHVISION)
@pytest.mark.parametrize("size", [(301, 412), (257, 258), (500, 260), (224, 224), (60, 50)])
def test_torchvision_gives_the_same_bits(name, size):
    pixels = picture(*size)
    expected = tv.Compose(TORCHVISION[name])(Image.fromarray(pixels))
    assert torch.equal(tensor_of(name, pixels), expected)


def test_an_image_that_is_smaller_than_a_crop_gets_no_black_border():
    steps = [{"convert": "RGB"}, {"crop": 64}, {"scale": "unit"}]
    card = EncoderCard.model_validate({**CARDS["tiny_vit"].model_dump(), "transform": steps})
    transform = build_transform(card.transform)
    assert transform(picture(64, 90)).shape == (3, 64, 64)
    with pytest.raises(DataError, match="crop of 64 px does not fit into an image of 90 x 63 px"):
        transform(picture(63, 90))


@pytest.mark.parametrize("size", [(301, 412), (613, 540)])
def test_biovil_is_grey_stretched_and_not_normalised(size):
    pixels = picture(*size) // 2 + 40
    array = pixels.astype(float)
    array -= array.min()
    array /= array.max()
    grey = Image.fromarray((array * 255).astype(np.uint8)).convert("L")
    steps = [tv.Resize(512), tv.CenterCrop(480), tv.ToTensor()]
    expected = tv.Compose(steps)(grey).expand(3, -1, -1)
    found = tensor_of("biovil", pixels)
    assert torch.equal(found, expected)
    assert 0 <= found.min() < found.max() <= 1


def test_a_black_image_stays_black_when_it_is_stretched():
    assert tensor_of("biovil", np.zeros((50, 60, 3), np.uint8)).abs().max() == 0


@pytest.mark.parametrize("size", [(301, 412), (700, 320), (154, 77)])
def test_chexzero_pads_normalises_bytes_and_resizes_without_antialias(size):
    pixels = picture(*size)
    ratio = 320 / max(size)
    resized = Image.fromarray(pixels).resize(
        (int(size[1] * ratio), int(size[0] * ratio)), Image.Resampling.LANCZOS
    )
    canvas = Image.new("L", (320, 320))
    canvas.paste(resized, ((320 - resized.width) // 2, (320 - resized.height) // 2))
    grey = torch.from_numpy(np.array(canvas, dtype=np.float32)).expand(3, -1, -1)
    normalise = tv.Normalize((101.48761,) * 3, (83.43944,) * 3)
    expected = tv.Resize(224, BICUBIC, antialias=False)(normalise(grey))
    smooth = tv.Resize(224, BICUBIC, antialias=True)(normalise(grey))
    found = tensor_of("chexzero", pixels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - smooth).abs().mean() > 0.005


@pytest.mark.parametrize("size", [(90, 150), (401, 300), (336, 336)])
def test_llava_med_pads_to_a_square_with_the_mean_colour(size):
    pixels = picture(*size)
    side = max(size)
    square = Image.new("RGB", (side, side), tuple(int(255 * mean) for mean in CLIP.mean))
    square.paste(Image.fromarray(pixels), ((side - size[1]) // 2, (side - size[0]) // 2))
    steps = [tv.Resize(336, BICUBIC), tv.CenterCrop(336), tv.ToTensor(), CLIP]
    assert torch.equal(tensor_of("llava_med", pixels), tv.Compose(steps)(square))


@pytest.mark.parametrize(
    ("name", "module", "class_name", "options"),
    [
        ("rad_dino", "bit", "BitImageProcessorPil", {
            "size": {"shortest_edge": 224}, "crop_size": 224,
            "image_mean": [0.5307] * 3, "image_std": [0.2583] * 3,
        }),
        ("rad_dino_518", "bit", "BitImageProcessorPil", {
            "size": {"shortest_edge": 518}, "crop_size": 518,
            "image_mean": [0.5307] * 3, "image_std": [0.2583] * 3,
        }),
        ("medsiglip", "siglip", "SiglipImageProcessorPil", {
            "size": {"height": 448, "width": 448}, "resample": 3,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        }),
        ("medgemma", "gemma3", "Gemma3ImageProcessorPil", {
            "size": {"height": 896, "width": 896}, "resample": 2,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        }),
    ],
)  # fmt: skip
def test_the_released_processors_of_transformers_agree(name, module, class_name, options):
    import importlib

    path = f"transformers.models.{module}.image_processing_pil_{module}"
    processor = getattr(importlib.import_module(path), class_name)(**options)
    pixels = picture(301, 412)
    expected = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(tensor_of(name, pixels), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", list(CARDS))
@pytest.mark.parametrize("size", [(1, 1), (37, 900), (1024, 768)])
def test_every_image_becomes_the_declared_square(name, size):
    side = input_px(CARDS[name])
    tensor = tensor_of(name, picture(*size))
    assert tensor.shape == (3, side, side)
    assert tensor.dtype == torch.float32
    assert tensor.permute(1, 2, 0).is_contiguous()
    place = np.empty((side, side, 3), np.float32)
    build_transform(CARDS[name].transform)(picture(*size), out=place)
    np.testing.assert_array_equal(place.transpose(2, 0, 1), tensor.numpy())
    assert torch.isfinite(tensor).all()


GOLDEN = {
    # name: (mean, std, red, green and blue of the centre, red near a corner)
    "resnet50": (0.20663, 1.36297, 0.05694, -0.23249, -1.45586, -1.80966),
    "vit_b16": (-0.00929, 0.61479, -0.00392, -0.17647, -0.84314, -0.97647),
    "clip_b16": (0.17230, 1.20146, 0.06174, -0.20630, -1.25270, -1.74847),
    "siglip_b16": (-0.00927, 0.63887, -0.00392, -0.17647, -0.93725, -0.97647),
    "dinov2_b14": (0.20683, 1.40515, 0.05694, -0.23249, -1.45586, -1.80966),
    "mae_b16": (0.20683, 1.40515, 0.05694, -0.23249, -1.45586, -1.80966),
    "biomedclip": (0.17230, 1.20146, 0.06174, -0.20630, -1.25270, -1.74847),
    "llava_med": (0.12264, 1.03419, 0.06174, -0.19129, -1.33802, -0.01125),
    "medsiglip": (-0.00921, 0.65756, -0.00392, -0.20784, -0.84314, -0.99216),
    "medgemma": (-0.00929, 0.64216, -0.00392, -0.22353, -0.84314, -1.00000),
    "panderm": (0.20670, 1.36427, 0.05719, -0.23249, -1.45586, -1.81760),
    "retfound": (0.20683, 1.40515, 0.05694, -0.23249, -1.45586, -1.80966),
    "rad_dino": (-0.13527, 1.25194, -0.12645, -0.49082, -1.81167, -2.00904),
    "biovil": (0.49746, 0.18783, 0.38824, 0.38824, 0.38824, 0.68627),
    "chexzero": (-0.10932, 0.84073, 0.02954, 0.02954, 0.02954, -1.21630),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_golden_pixels_of_each_release(name):
    tensor = tensor_of(name, picture(301, 412)).double()
    middle = tensor.shape[-1] // 2
    found = [tensor.mean(), tensor.std(), *tensor[:, middle, middle], tensor[0, 3, 5]]
    assert [float(value) for value in found] == pytest.approx(GOLDEN[name], abs=2e-5)


def test_colour_encoders_see_colour_and_grey_ones_do_not():
    pixels = picture(301, 412)
    for name in PUBLISHED:
        red, green, _ = tensor_of(name, pixels)
        assert torch.equal(red, green) == (name in {"biovil", "chexzero"}), name


@pytest.mark.parametrize("pixels", [picture(9, 9)[..., 0], picture(9, 9).astype(np.float64)])
def test_anything_but_rgb_bytes_is_refused(pixels):
    with pytest.raises(ValueError, match="expected \\(H, W, 3\\) uint8"):
        tensor_of("resnet50", pixels)


def test_an_image_larger_than_its_pad_is_refused():
    steps = [{"convert": "RGB"}, {"pad": {"to": 8, "fill": 0}}, {"scale": "unit"}]
    entry = {
        "name": "x",
        "label": "x",
        "loader": "statistics",
        "architecture": "x",
        "weights": "none",
        "transform": steps,
    }
    card = EncoderCard.model_validate(entry)
    assert build_transform(card.transform)(picture(3, 8)).shape == (3, 8, 8)
    with pytest.raises(DataError, match="does not fit into a pad of 8 px; resize its longer side"):
        build_transform(card.transform)(picture(3, 9))
