"""The documents keep up: every setting is described, links resolve, examples are valid."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from crsbench import plan
from crsbench.config import check_settings, merge_all, read_source, read_yaml
from crsbench.datasets.definitions import load_definitions
from crsbench.encoders.cards import load_cards
from crsbench.images import inspect_image

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = read_yaml(ROOT / "config" / "config.yaml")
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("resources/*/*.md")])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def keys_of(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from keys_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def headings_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def blocks_of(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text("utf-8")) if kind == language]


def test_the_protocol_describes_every_setting_and_none_that_is_gone():
    table = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \| .+ \|$", section("10. Settings"), re.M)
    named = {name for cell in table for name in re.findall(r"`([\w.]+)`", cell)}
    assert named == set(keys_of(SETTINGS))


def section(title: str) -> str:
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_resolve(page):
    for target, anchor in LINK.findall(prose_of(page)):
        if re.match(r"https?:|mailto:", target):
            continue
        linked = (page.parent / target) if target else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in headings_of(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("number", range(len(blocks_of(DOCS / "add-an-encoder.md", "yaml"))))
def test_the_examples_of_cards_are_valid(number, tmp_path):
    example = tmp_path / "my_encoders.yaml"
    example.write_text(blocks_of(DOCS / "add-an-encoder.md", "yaml")[number], encoding="utf-8")
    assert load_cards([ROOT / "config" / "encoders.yaml", example])


def test_the_examples_of_datasets_are_valid(tmp_path):
    example = tmp_path / "mine.yaml"
    entry, _, target = blocks_of(DOCS / "add-a-dataset.md", "yaml")
    example.write_text(f"{entry}\n{target}", encoding="utf-8")
    read = load_definitions([ROOT / "config" / "datasets.yaml", example], data_root="data")
    assert read["elsewhere"].shift_of == "chexpert"
    assert read["clinic"].columns.group == "patient"


def test_the_example_of_a_configuration_with_an_encoder_and_a_dataset_of_ones_own_is_valid(
    tmp_path,
):
    _, settings, _ = blocks_of(DOCS / "add-a-dataset.md", "yaml")
    (tmp_path / "mine.yaml").write_text(settings, encoding="utf-8")
    sources = [read_source(path) for path in (ROOT / "config/config.yaml", tmp_path / "mine.yaml")]
    assert check_settings(merge_all(sources), sources).datasets == ("clinic",)


def test_the_guide_names_every_setting_that_needs_a_store_of_its_own():
    page = (DOCS / "add-a-dataset.md").read_text(encoding="utf-8")
    item = page.partition("- **`store: FOLDER`**")[2].partition(".")[0]
    assert sorted(re.findall(r"`(\w+)`", item)) == sorted(plan._OF_THE_STORE)


def test_the_example_that_flattens_makes_translucent_images_usable(tmp_path, monkeypatch):
    (source,) = blocks_of(DOCS / "add-a-dataset.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    Image.new("RGBA", (4, 4), (200, 100, 0, 128)).save("images/a.png")
    assert inspect_image("images/a.png").problem == (
        "translucent pixels, expected an opaque picture"
    )
    exec(compile(source, "example", "exec"), {})
    assert inspect_image("flat/a.png").problem is None
    assert Image.open("flat/a.png").getpixel((0, 0)) == (100, 50, 0)


def test_the_example_of_a_loader_has_the_two_functions(tmp_path):
    (source,) = blocks_of(DOCS / "add-an-encoder.md", "python")
    module: dict[str, Any] = {}
    exec(compile(source, "example", "exec"), module)
    assert callable(module["load_source"])
    assert callable(module["build"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_gap_left_to_fill(page):
    assert "@@" not in page.read_text(encoding="utf-8")
