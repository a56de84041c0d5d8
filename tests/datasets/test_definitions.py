"""Definitions of datasets: complete, typed, and refused with file, dataset and key."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import yaml

from crsbench import datasets
from crsbench.datasets.definitions import (
    ADAPTERS,
    DatasetDefinition,
    load_definitions,
    missing_data,
)
from crsbench.errors import ConfigError

OFFICIAL = Path(__file__).parents[2] / "config" / "datasets.yaml"
ENTRY = {
    "label": "Mine",
    "adapter": "folder",
    "domain": "dermatology",
    "task": "multiclass",
    "classes": ["benign", "malignant"],
}
RELEASE = {"authentication": "manual", "redistributable": False, "expected": {"images": 2}}


def definition_file(folder: Path, name: str = "mine.yaml", **entries) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(entries))
    return path


def load(folder: Path, **entries) -> dict[str, DatasetDefinition]:
    return load_definitions([definition_file(folder, **entries)], data_root="data")


def test_the_official_definitions_have_the_classes_of_the_benchmark():
    definitions = load_definitions([OFFICIAL], data_root="data", store="results")
    n_classes = {name: len(definitions[name].classes) for name in definitions}
    official = {"isic2019": 8, "aptos2019": 5, "chexpert": 14, "mimic_cxr": 14}
    assert official.items() <= n_classes.items()
    assert definitions["mimic_cxr"].shift_of == "chexpert"
    assert definitions["mimic_cxr"].classes == definitions["chexpert"].classes
    assert definitions["mimic_cxr"].root == Path("data/mimic-cxr-jpg")
    assert definitions["isic2019"].root == Path("data/isic2019")


@pytest.mark.parametrize("name", ["isic2019", "aptos2019", "chexpert", "mimic_cxr"])
def test_missing_data_say_where_they_were_sought_and_how_to_get_them(tmp_path, name):
    definition = load_definitions([OFFICIAL], data_root=tmp_path, store=tmp_path)[name]
    message = missing_data(definition)
    assert f"its folder {definition.root} does not exist" in message
    assert definition.access.strip() in message
    definition.root.mkdir()
    assert ".csv" in missing_data(definition)


def test_the_adapters_are_the_modules_that_read_a_listing():
    names = [module.name for module in iter_modules(datasets.__path__)]
    modules = {name: import_module(f"crsbench.datasets.{name}") for name in names}
    readers = [name for name, module in modules.items() if hasattr(module, "read_listing")]
    assert sorted(readers) == list(ADAPTERS)
    assert all(hasattr(modules[name], "label_files") for name in ADAPTERS)


def test_a_users_file_adds_to_the_official_ones(tmp_path):
    own = definition_file(tmp_path, clinic=ENTRY)
    definitions = load_definitions([OFFICIAL, own], data_root="data", store="results")
    assert {"isic2019", "clinic"} <= definitions.keys()
    assert definitions["clinic"].columns.group == "group"


def test_a_definition_survives_json(tmp_path):
    definition = load(tmp_path, clinic=ENTRY | {"columns": {"group": None}})["clinic"]
    assert DatasetDefinition.model_validate_json(definition.model_dump_json()) == definition


def test_classes_may_be_numbers(tmp_path):
    assert load(tmp_path, grades=ENTRY | {"classes": [0, 1]})["grades"].classes == ("0", "1")


def test_the_root_is_a_template(tmp_path):
    path = definition_file(tmp_path, a=ENTRY | {"root": "{store}/phantoms/{name}"})
    root = load_definitions([path], data_root="data", store="results")["a"].root
    assert root == Path("results/phantoms/a")


def test_the_same_name_in_two_files_is_an_error_that_names_both(tmp_path):
    first = definition_file(tmp_path, "first.yaml", clinic=ENTRY)
    second = definition_file(tmp_path, "second.yaml", clinic=ENTRY)
    with pytest.raises(ConfigError, match=r"second\.yaml: dataset clinic .*first\.yaml too"):
        load_definitions([first, second], data_root="data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lable": "x"}, r"lable: unknown key; allowed: .*classes, columns, csv, domain"),
        ({"columns": {"ident": "x"}}, r"columns\.ident: unknown key; allowed: group, id, label"),
        (
            {"phantom": {"knd": "x"}},
            r"phantom\.knd: unknown key; allowed: kind, n_images, seed, si",
        ),
        ({"adapter": "zip"}, r"adapter: 'zip' is unknown; allowed: aptos2019, .*isic2019"),
        ({"task": "regression"}, r"task: Input should be 'multiclass', 'ordinal' or 'multilabel'"),
        ({"classes": ["a", "a", "b"]}, r"classes: a named more than once"),
        ({"classes": ["a"]}, r"classes: multiclass needs two or more, got 1"),
        ({"classes": []}, r"classes: .*at least 1 in the list"),
        ({"root": "{home}/x"}, r"root: '\{home\}/x' can hold \{name\}, \{data_root\} only"),
        ({"adapter": "isic2019", "csv": "a.csv"}, r"csv: only the adapter folder has it"),
        ({"views": ["AP"]}, r"views: only the adapter mimic_cxr has it, not folder"),
        ({"shift_of": "nowhere"}, r"shift_of: nowhere is not defined; allowed: clinic"),
        (
            {"n_images": 2, "release": RELEASE},
            r"n_images: release\.expected\.images states it already",
        ),
        ({"synthetic": "perhaps"}, r"synthetic: expected true or false, got 'perhaps'"),
    ],
)
def test_a_wrong_key_is_named_with_file_dataset_and_what_is_allowed(tmp_path, change, message):
    with pytest.raises(ConfigError, match=rf"mine\.yaml: dataset clinic: {message}"):
        load(tmp_path, clinic=ENTRY | change)


def test_a_missing_key_is_named(tmp_path):
    without_task = {key: value for key, value in ENTRY.items() if key != "task"}
    with pytest.raises(ConfigError, match=r"mine\.yaml: dataset clinic: task: missing; docs/add"):
        load(tmp_path, clinic=without_task)


@pytest.mark.parametrize("classes", [["malignant", "benign"], ["benign", "malignant"]])
def test_a_shift_target_has_the_classes_of_its_source_in_any_order(tmp_path, classes):
    other = ENTRY | {"classes": classes, "shift_of": "clinic"}
    assert load(tmp_path, clinic=ENTRY, there=other)["there"].classes == tuple(classes)


def test_a_shift_target_can_lack_classes(tmp_path):
    source = ENTRY | {"classes": ["benign", "unsure", "malignant"]}
    assert load(tmp_path, clinic=source, there=ENTRY | {"shift_of": "clinic"})["there"]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ({}, {"classes": ["benign", "malign"]}, r"has no class 'malign'; classes are matched by "),
        ({}, {"task": "ordinal"}, r"its task is multiclass, not ordinal"),
        (
            {"task": "ordinal", "classes": ["a", "b", "c"]},
            {"task": "ordinal", "classes": ["c", "a"]},
            r"has its classes in another order: a, c",
        ),
    ],
)
def test_a_shift_target_that_does_not_fit_its_source_is_an_error(tmp_path, source, target, message):
    entries = {"clinic": ENTRY | source, "there": ENTRY | {"shift_of": "clinic"} | target}
    with pytest.raises(ConfigError, match=rf"dataset there: shift_of: clinic:? {message}"):
        load(tmp_path, **entries)


def test_a_missing_definition_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file of dataset definitions"):
        load_definitions(["nowhere.yaml"], data_root="data")


def test_an_entry_that_is_no_mapping_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"dataset clinic: expected a mapping of keys, got 'x'"):
        load(tmp_path, clinic="x")
