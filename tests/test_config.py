"""Settings: everything checked before anything runs, with the file and the key in the error."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from crsbench.config import (
    Model,
    Source,
    check_settings,
    describe_errors,
    merge_all,
    read_source,
)
from crsbench.errors import ConfigError

ROOT = Path(__file__).parents[1]
BASE = read_source(ROOT / "config" / "config.yaml")


def check(**over: Any):
    user = Source("mine.yaml", over)
    return check_settings(merge_all([BASE, user]), [BASE, user])


def test_the_default_configuration_is_the_full_benchmark():
    settings = check()
    assert len(settings.encoders) == 15
    assert settings.datasets == ("isic2019", "aptos2019", "chexpert")
    assert settings.run_folder == settings.store == "results"


def test_a_named_run_has_its_own_folder_in_the_store():
    assert check(run="two").run_folder == "results/runs/two"


@pytest.mark.parametrize(
    ("device", "probe", "n_gpus"),
    [("auto", "logistic", 0), ("cpu", "logistic", 0), ("cuda", "logistic", 1), ("cuda", "mlp", 0)],
)
def test_a_job_of_the_logistic_probe_needs_a_gpu_where_one_is_named(device, probe, n_gpus):
    assert check(fitting={"device": device}).gpus_of_probe(probe) == n_gpus


def test_mappings_merge_and_lists_are_replaced():
    settings = check(split={"seed": 7}, seeds=[3])
    assert (settings.split.seed, settings.split.train, settings.seeds) == (7, 0.7, (3,))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"sedes": [0]}, r"^mine\.yaml: sedes: unknown key; allowed: .*seeds"),
        ({"split": {"tset": 0.2}}, r"split\.tset: unknown key; allowed: calibration, seed, t"),
        ({"split": {"test": 0.3}}, r"split: train \+ calibration \+ test must be 1, not 1\.1"),
        ({"probes": ["svm"]}, r"probes\.0: Input should be 'logistic', 'mlp' or 'knn', got 'svm'"),
        ({"fitting": {"device": "mps"}}, r"fitting\.device: Input should be 'auto', 'cpu' or 'c"),
        ({"uncertain": "drop"}, r"uncertain: Input should be 'mask', 'zeros', 'ones' or 'mixed'"),
        ({"label_fractions": [0.1]}, r"label_fractions: 1\.0 is missing"),
        ({"label_fractions": [0.0, 1.0]}, r"label_fractions\.0: Input should be greater than 0"),
        ({"seeds": [0, 0]}, r"seeds: 0 selected more than once"),
        ({"encoders": []}, r"encoders: expected at least 1 in the list, got \[\]$"),
        (
            {"datasets": "isic2019"},
            r"datasets: expected a list, such as \[isic2019\], got 'isic20",
        ),
        (
            {"encoder_definitions": "mine.yaml"},
            r"expected a list, such as \[config/encoders\.yaml,my_encoders\.yaml\], got 'mine\.y",
        ),
        ({"seeds": None}, r"seeds: expected a list in \[ \], got nothing$"),
        ({"seeds": ["a"]}, r"^mine\.yaml: seeds\.0: expected a whole number, got 'a'$"),
        ({"severities": {"blur": 1}}, r"severities\.blur: expected a list in \[ \], got 1$"),
        ({"severities": {"blur": [1, 2]}}, r"severities\.blur\.2: missing; the list is too short$"),
        (
            {"severities": {"blur": [1, 2, 3, 4]}},
            r"blur: expected 3 in the list, got \[1, 2, 3, 4\]$",
        ),
        ({"run": None}, r'run: expected a text, such as two, or "" for none, got nothing$'),
        ({"split": None}, r"split: expected a mapping of keys, got nothing$"),
        ({"missing": None}, r"missing: Input should be 'error' or 'skip', got nothing$"),
        (
            {"score.reference": "a.json"},
            r"unknown key; a key inside another is written 'score=\{reference: a\.json\}' after "
            r"--config, and score: \{reference: a\.json\} in a file$",
        ),
        ({"a.b": 1}, r"a\.b: unknown key; allowed: .*seeds"),
        ({"score": {"axes": {"robustness": 0.5}}}, r"weights of axes must sum to 1, not 1\.25"),
        ({"score": {"axes": {"robustness": -0.25}}}, r"greater than or equal to 0, got -0\.25"),
    ],
)
def test_a_wrong_setting_names_file_key_and_what_is_allowed(over, message):
    with pytest.raises(ConfigError, match=message):
        check(**over)


def test_a_missing_key_is_named():
    content = {key: value for key, value in BASE.content.items() if key != "seeds"}
    with pytest.raises(ConfigError, match=r"seeds: missing; config/config\.yaml documents it"):
        check_settings(content, [Source("config.yaml", content)])


class Red(Model):
    kind: Literal["red"]
    depth: int


class Blue(Model):
    kind: Literal["blue"]
    to: Literal["sky", "sea"]
    mark: Literal["dot"] = "dot"


class Palette(Model):
    name: str
    best: Annotated[Red | Blue, Field(discriminator="kind")]
    all: tuple[Annotated[Red | Blue, Field(discriminator="kind")], ...] = ()
    spare: Red | None = None


RED = {"kind": "red", "depth": 1}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"bset": RED}, "p.yaml: bset: unknown key; allowed: all, best, spare"),
        ({"best": RED | {"hue": 1}}, "p.yaml: best.red.hue: unknown key; allowed: depth"),
        (
            {"all": [RED, {"kind": "blue", "to": "sky", "hue": 1}]},
            "p.yaml: all.1.blue.hue: unknown key; allowed: mark, to",
        ),
        ({"spare": RED | {"hue": 1}}, "p.yaml: spare.hue: unknown key; allowed: depth, kind"),
        ({"spare": {"kind": "red"}}, "p.yaml: spare.depth: missing; the manual documents it"),
    ],
)
def test_allowed_keys_are_those_of_the_part_that_was_meant(content, line):
    with pytest.raises(ValidationError) as caught:
        Palette.model_validate({"name": "warm", "best": RED} | content)
    described = describe_errors(
        caught.value, Palette, where=lambda _: "p.yaml", documented_in="the manual"
    )
    assert described == line


def test_each_fault_has_its_own_line_and_place():
    with pytest.raises(ValidationError) as caught:
        Palette.model_validate({"best": {"kind": "red", "depth": "deep"}})
    described = describe_errors(
        caught.value, Palette, where=lambda key: f"<{key}>", documented_in="the manual"
    )
    assert described.splitlines() == [
        "<name>: name: missing; the manual documents it",
        "<best>: best.red.depth: expected a whole number, got 'deep'",
    ]


def test_a_file_that_is_not_there_or_no_mapping_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such configuration file"):
        read_source(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping of keys, got list"):
        read_source(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_source(tmp_path / "broken.yaml")
