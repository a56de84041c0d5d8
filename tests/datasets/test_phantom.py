"""Phantoms: the same arguments give the same bytes, and labels and groups mean what they say."""

import csv
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crsbench.datasets import phantom
from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.datasets.drawings import fundus, radiograph
from crsbench.datasets.drawings.cases import Case
from crsbench.datasets.folder import read_listing
from crsbench.datasets.phantom import KINDS, draw_dataset
from crsbench.errors import ConfigError, DataError

ROOT = Path(__file__).parents[2]
MULTICLASS = {"dermoscopy": 8, "fundus": 5}
MULTILABEL = ("radiograph", "institution")


def drawn(directory: Path, kind: str = "radiograph", **changes: int) -> Path:
    arguments = {"n_images": 16, "size_px": 32, "seed": 0} | changes
    draw_dataset(kind, **arguments, directory=directory)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def table(directory: Path) -> list[dict[str, str]]:
    with (directory / "labels.csv").open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


@cache
def cases(kind: str, n_images: int = 280) -> list[Case]:
    return KINDS[kind].plan(n_images, 0)


def findings(case: Case) -> Mapping[str, str]:
    return {label: case.cells[label] for label in radiograph.LABELS}


def share_present(kind: str, label: str) -> float:
    return float(np.mean([case.cells[label] == "1" for case in cases(kind, 1000)]))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetDefinition]:
    """The phantom definitions that come with the project."""
    store = tmp_path_factory.mktemp("store")
    return load_definitions([ROOT / "config" / "phantoms.yaml"], data_root="data", store=store)


# The same arguments, the same bytes.


@pytest.mark.parametrize("kind", KINDS)
def test_two_draws_are_equal_to_the_byte(kind: str, tmp_path: Path) -> None:
    files = contents(drawn(tmp_path / "a", kind))
    assert files == contents(drawn(tmp_path / "b", kind))
    assert len(set(files.values())) == len(files) == 17


def test_the_draw_does_not_depend_on_the_process() -> None:
    """The order of a set of strings differs between processes: none may reach the picture."""
    program = (
        "from crsbench.datasets.phantom import KINDS; import hashlib\n"
        "text = repr([(c.identifier, sorted(c.signs), dict(c.cells)) for name in sorted(KINDS) "
        "for c in KINDS[name].plan(60, 0)])\n"
        "kind = KINDS['radiograph']; case = kind.plan(60, 0)[3]\n"
        "text += repr(kind.draw(case, 48, 0).tobytes())\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": str(ROOT / "workflow" / "scripts"),
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_does_not_depend_on_those_drawn_before_it(kind: str) -> None:
    plan = cases(kind, 16)[:4]
    forwards = [KINDS[kind].draw(case, 32, 0).tobytes() for case in plan]
    backwards = [KINDS[kind].draw(case, 32, 0).tobytes() for case in reversed(plan)]
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_draws_other_images(kind: str, tmp_path: Path) -> None:
    one, other = (
        contents(drawn(tmp_path / "0", kind)),
        contents(drawn(tmp_path / "1", kind, seed=1)),
    )
    assert one["labels.csv"] != other["labels.csv"]
    pictures = [{v for k, v in files.items() if k != "labels.csv"} for files in (one, other)]
    assert pictures[0].isdisjoint(pictures[1])


# What is written.


@pytest.mark.parametrize(("kind", "mode"), list(zip(KINDS, ("RGB", "RGB", "L", "L"), strict=True)))
def test_every_row_has_its_image_of_the_size_asked_for(
    kind: str, mode: str, tmp_path: Path
) -> None:
    rows = table(drawn(tmp_path / "a", kind, n_images=17, size_px=40))
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    assert len(rows) == 17
    for row in rows:
        with Image.open(tmp_path / "a" / row["path"]) as image:
            assert (image.format, image.mode, image.size) == ("PNG", mode, (40, 40))


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_neither_flat_nor_clipped(kind: str) -> None:
    for case in cases(kind, 16):
        pixels = np.asarray(KINDS[kind].draw(case, 64, 0), dtype=float)
        assert pixels.std() > 10
        assert np.mean(pixels == 255) < 0.25


def test_a_new_draw_replaces_an_older_one(tmp_path: Path) -> None:
    drawn(tmp_path / "a", n_images=20)
    drawn(tmp_path / "a", n_images=16)
    assert contents(tmp_path / "a") == contents(drawn(tmp_path / "b", n_images=16))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_a_draw_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        drawn(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


# Groups.


@pytest.mark.parametrize("kind", KINDS)
def test_subjects_have_one_to_three_images_and_some_have_more_than_one(kind: str) -> None:
    plan = cases(kind)
    assert len(plan) == 280
    sizes = Counter(case.group for case in plan)
    assert set(sizes.values()) == ({1, 2} if kind == "fundus" else {1, 2, 3})
    assert 120 < len(sizes) < 240


def test_all_images_of_a_lesion_have_its_class() -> None:
    classes = defaultdict(set)
    for case in cases("dermoscopy"):
        classes[case.group].add(case.cells["label"])
    assert all(len(names) == 1 for names in classes.values())


def test_two_eyes_differ_by_one_grade_at_most() -> None:
    grades = defaultdict(list)
    for case in cases("fundus"):
        grades[case.group].append(fundus.GRADES.index(case.cells["label"]))
    spans = [max(eyes) - min(eyes) for eyes in grades.values()]
    assert set(spans) == {0, 1}


# Labels.


@pytest.mark.parametrize(("kind", "n_classes"), list(MULTICLASS.items()))
@pytest.mark.parametrize("n_images", [16, 280])
def test_every_class_is_there_and_they_are_skewed(kind: str, n_classes: int, n_images: int) -> None:
    counts = Counter(case.cells["label"] for case in cases(kind, n_images))
    assert len(counts) == n_classes
    assert max(counts.values()) >= 2 * min(counts.values())


@pytest.mark.parametrize("kind", MULTILABEL)
def test_every_finding_is_present_in_some_films_and_absent_in_others(kind: str) -> None:
    for label in radiograph.LABELS:
        counts = Counter(case.cells[label] for case in cases(kind, 100))
        assert counts["1"] >= 4, label
        assert counts["0"] + counts[""] >= 20, label
        assert set(counts) <= {"1", "0", "-1", ""}


def test_only_some_findings_are_ever_uncertain() -> None:
    uncertain = {
        label
        for case in cases("radiograph", 1000)
        for label, cell in findings(case).items()
        if cell == "-1"
    }
    assert uncertain == radiograph.UNCERTAIN


def test_no_finding_excludes_all_but_devices() -> None:
    for case in cases("radiograph", 1000):
        others = {label for label, cell in findings(case).items() if cell == "1"}
        if case.cells["No Finding"] == "1":
            assert others <= {"No Finding", "Support Devices"}


def test_a_finding_brings_its_parent() -> None:
    for case in cases("radiograph", 1000):
        for child, parent in radiograph.PARENTS.items():
            if case.cells[child] == "1":
                assert case.cells[parent] == "1"


def test_every_finding_but_none_at_all_is_drawn() -> None:
    by_anatomy = {"Cardiomegaly", "Enlarged Cardiomediastinum"}
    drawn_signs = radiograph.SIGNS.keys() | by_anatomy
    assert drawn_signs == set(radiograph.LABELS) - {"No Finding"}
    for site in radiograph.SITES:
        assert site.prevalence.keys() == drawn_signs


# The second institution.


def test_the_second_institution_has_other_prevalences_and_views() -> None:
    for label in ("Cardiomegaly", "Edema", "Pleural Effusion", "Support Devices"):
        assert share_present("institution", label) > share_present("radiograph", label) + 0.05
    assert share_present("institution", "No Finding") < share_present("radiograph", "No Finding")
    portable = [np.mean([c.cells["view"] == "AP" for c in cases(kind)]) for kind in MULTILABEL]
    assert portable[1] > portable[0] + 0.2


def test_the_second_institution_frames_more_of_its_films() -> None:
    def share_framed(kind: str) -> float:
        films = [np.asarray(KINDS[kind].draw(case, 32, 0)) for case in cases(kind, 40)]
        return float(np.mean([film[-1].mean() < 10 for film in films]))

    assert share_framed("institution") > share_framed("radiograph") + 0.2


# The definitions that come with the project.


def test_definitions_name_the_classes_that_are_drawn(
    shipped: dict[str, DatasetDefinition],
) -> None:
    for name, definition in shipped.items():
        assert definition.phantom is not None, name
        kind = definition.phantom.kind
        if kind in MULTICLASS:
            plan = cases(kind, definition.phantom.n_images)
            assert set(definition.classes) == {case.cells["label"] for case in plan}
        else:
            assert definition.classes == radiograph.LABELS
        assert definition.phantom.n_images <= 330
        assert definition.synthetic
    assert shipped["phantom_fundus"].classes == fundus.GRADES


@pytest.mark.parametrize("name", ["tiny_radiograph", "tiny_institution"])
def test_the_folder_adapter_reads_a_tiny_draw(
    name: str, shipped: dict[str, DatasetDefinition]
) -> None:
    definition = shipped[name]
    assert definition.phantom is not None
    draw_dataset(**definition.phantom.model_dump(), directory=definition.root)
    samples = read_listing(definition).samples
    assert samples.height == definition.phantom.n_images
    assert samples["group"].n_unique() < samples.height
    assert set(samples["view"]) == {"AP", "PA"}
    assert {-1, 0, 1} == {value for row in samples["labels"] for value in row}


# Bad arguments.


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mri", {}, "'mri' is unknown: choose one of dermoscopy, fundus, radiograph, institution"),
        ("fundus", {"n_images": 15}, "n_images is 15: give at least 16"),
        ("fundus", {"size_px": 31}, "size_px is 31: give 32 to 1024"),
        ("fundus", {"size_px": 1025}, "size_px is 1025"),
        ("fundus", {"seed": -1}, "seed is -1: give a whole number from 0"),
    ],
)
def test_an_argument_out_of_range_is_refused(
    kind: str, changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(tmp_path / "a", kind, **changes)
    assert not (tmp_path / "a").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"holds 'thesis\.txt', which no phantom draw wrote"):
        drawn(tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(DataError, match="is a file, expected a folder"):
        drawn(tmp_path / "a")


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_size_is_drawn(kind: str) -> None:
    smallest = phantom.SIZES_PX[0]
    assert KINDS[kind].draw(cases(kind, 16)[0], smallest, 0).size == (smallest, smallest)
