"""The plan of a run: what its settings select, and which records must come out.

The Snakefile and the command line make the same plan. Making one reads definitions, never data
(save to see whether a dataset is there, where ``missing: skip`` asks for it).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from crsbench.config import (
    SEVERITIES,
    Probe,
    Settings,
    Source,
    check_settings,
    merge_all,
    read_source,
)
from crsbench.crs import Weights
from crsbench.datasets.definitions import (
    DatasetDefinition,
    label_files,
    load_definitions,
    missing_data,
)
from crsbench.datasets.locks import lock_of, name_below
from crsbench.encoders.cards import EncoderCard, load_cards
from crsbench.errors import ConfigError
from crsbench.records import Cell, RunKey, conditions, enumerate_run_keys
from crsbench.reference_files import load_reference

#: Settings that all records carry beside those of their probe: what can change a number in them.
_PROTOCOL = (
    "split", "uncertain", "conflicting_labels", "near_duplicates", "max_side_px", "severities",
    "metrics", "label_fractions",
)  # fmt: skip
#: Settings that files of the store depend on: a run that shares it cannot have its own.
_OF_THE_STORE = (
    *_PROTOCOL, *get_args(Probe), "shift", "seeds", "perturbations", "verify", "depth_features",
)  # fmt: skip
#: Neutral values of the descriptive parts: editing those re-runs nothing.
_NEUTRAL_DEFINITION = {
    "label": "-", "domain": "-", "licence": "not stated", "citation": "", "synthetic": False,
    "access": "", "release": None, "n_images": None,
}  # fmt: skip
_NEUTRAL_CARD = {
    "label": "-", "group": "generalist", "domain": None, "gated": None, "source": "",
    "lora_targets": None, "blocks": None, "depth_indices": (), "skip_datasets": (),
    "size_class": "medium", "cost": None, "pretraining_overlap": (),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a run consists of.

    Attributes
    ----------
    settings
        The checked settings.
    encoders
        Cards of the selected encoders, in the order of the selection.
    datasets
        Definitions of the selected datasets and of their shift targets.
    shift
        Shift targets of each selected dataset that is there.
    cells
        The observed cells.
    excluded
        ``(encoder, dataset, reason)`` of the selected cells that are left out.
    """

    settings: Settings
    encoders: Mapping[str, EncoderCard]
    datasets: Mapping[str, DatasetDefinition]
    shift: Mapping[str, list[str]]
    cells: tuple[Cell, ...]
    excluded: tuple[tuple[str, str, str], ...]

    @cached_property
    def key_settings(self) -> dict[str, Any]:
        """What the record keys follow from, as plain values."""
        return {
            "cells": [list(cell) for cell in self.cells],
            "probes": list(self.settings.probes),
            "label_fractions": list(self.settings.label_fractions),
            "seeds": list(self.settings.seeds),
            "conditions": [
                list(item) for item in conditions(self.settings.perturbations, SEVERITIES)
            ],
            "shift": dict(self.shift),
        }

    def keys_of_cell(self, encoder: str, dataset: str, probe: str) -> dict[str, Any]:
        """Return `key_settings` of one probe of one cell."""
        own = {"cells": [[encoder, dataset]], "probes": [probe]}
        return self.key_settings | own | {"shift": {dataset: self.shift[dataset]}}

    def run_keys(self) -> Iterator[RunKey]:
        """Enumerate the run records that this run must yield."""
        return planned_keys(self.key_settings)

    def protocol_json(self, probe: str) -> str:
        """Return the settings that can change a record of a probe, as JSON: the record has them."""
        return json.dumps(self.settings.model_dump(include={*_PROTOCOL, probe}), sort_keys=True)

    @cached_property
    def synthetic(self) -> bool:
        """Whether any dataset of the run is drawn by a program."""
        return any(definition.synthetic for definition in self.datasets.values())

    @cached_property
    def encoder_names(self) -> list[list[str]]:
        """``[encoder, label, group]`` of every encoder, in order."""
        return [[card.name, card.label, card.group] for card in self.encoders.values()]

    @cached_property
    def excluded_cells(self) -> list[list[str]]:
        """``[encoder, dataset, reason]`` of every excluded cell."""
        return [list(cell) for cell in self.excluded]

    def definition_json(self, dataset: str) -> str:
        """Return the parts of a definition that can change its index."""
        neutral = self.datasets[dataset].model_copy(update=_NEUTRAL_DEFINITION)
        return neutral.model_dump_json(exclude_defaults=True)

    def card_json(self, encoder: str) -> str:
        """Return the parts of a card that can change its features."""
        neutral = self.encoders[encoder].model_copy(update=_NEUTRAL_CARD)
        return neutral.model_dump_json(exclude_defaults=True)

    def depth_indices(self, encoder: str) -> list[int]:
        """Return the blocks after which an encoder's features are wanted; none if not at all."""
        return list(self.encoders[encoder].depth_indices) if self.settings.depth_features else []

    def root(self, dataset: str) -> str:
        """Return the folder that the paths in a dataset's index start at."""
        return str(self.datasets[dataset].root)

    def drawing(self, dataset: str) -> dict[str, str | int]:
        """Return what is drawn for a synthetic dataset."""
        phantom = self.datasets[dataset].phantom
        if phantom is None:
            raise ConfigError(f"{dataset}: its definition says nothing about a phantom to draw")
        return phantom.model_dump()

    def adapter_module(self, dataset: str) -> str:
        """Return the library module that reads the dataset's files."""
        return f"datasets.{self.datasets[dataset].adapter}"

    def loader_module(self, encoder: str) -> str:
        """Return the library module that builds the encoder."""
        return f"encoders.loaders.{self.encoders[encoder].loader}"

    def given_data(self, dataset: str) -> list[str]:
        """Return what acquisition starts from: a phantom's folder, or label files of the user.

        Label files that acquisition itself has fetched are not among them: they are there in the
        second call of Snakemake and not in the first, and would look like a change.
        """
        definition = self.datasets[dataset]
        if definition.phantom is not None:
            return [str(definition.root)]
        fetched = lock_of(definition.root).placed
        return [
            str(path)
            for path in label_files(definition)
            if path.is_file() and name_below(definition.root, path) not in fetched
        ]

    def accepted_losses(self, dataset: str) -> list[str]:
        """Return the user's list of images that are left out, if there is one."""
        exclusions = self.datasets[dataset].exclusions
        return [str(exclusions)] if exclusions is not None and exclusions.is_file() else []


def planned_keys(key_settings: Mapping[str, Any]) -> Iterator[RunKey]:
    """Enumerate the run records that `Plan.key_settings` describe."""
    return enumerate_run_keys(
        [Cell(*cell) for cell in key_settings["cells"]],
        probes=key_settings["probes"],
        label_fractions=key_settings["label_fractions"],
        seeds=key_settings["seeds"],
        conditions=[(name, severity) for name, severity in key_settings["conditions"]],
        shift=key_settings["shift"],
    )


def make_plan(merged: Mapping[str, Any], *, files: Sequence[str | Path]) -> Plan:
    """Make the plan of merged settings.

    Parameters
    ----------
    merged
        The configuration as Snakemake merged it.
    files
        The files it came from, in order: to name the right one in an error.
    """
    sources = [read_source(path) for path in files]
    from_files = merge_all(sources)
    overrides = {key: value for key, value in merged.items() if from_files.get(key) != value}
    settings = check_settings(merged, [*sources, Source("--config", overrides)])
    _check_store(settings, overrides)
    cards = load_cards(settings.encoder_definitions)
    definitions = load_definitions(
        settings.dataset_definitions, data_root=settings.data_root, store=settings.store
    )
    return _resolve(settings, cards, definitions)


def _check_store(settings: Settings, overrides: Mapping[str, Any]) -> None:
    """Refuse a named run that would make the files of the shared store anew."""
    made_anew = sorted(set(_OF_THE_STORE) & set(overrides))
    if settings.run and made_anew and "store" not in overrides:
        raise ConfigError(
            f"--config: {', '.join(made_anew)}: run={settings.run} shares the files of "
            f"{settings.store} with other runs, which have other values; leave that out, or give "
            f"the run a store of its own, such as store={settings.store}/{settings.run}, where "
            "weights and features are made anew"
        )


def _resolve(
    settings: Settings,
    cards: Mapping[str, EncoderCard],
    definitions: Mapping[str, DatasetDefinition],
) -> Plan:
    _check_names("encoders", settings.encoders, cards, settings.encoder_definitions)
    for key, names in (("datasets", settings.datasets), ("shift", settings.shift)):
        _check_names(key, names, definitions, settings.dataset_definitions)
    _check_roles(settings, definitions)
    _check_skips(settings, cards, definitions)
    _check_reference(settings)
    absent = _absent(settings, definitions)
    shift = {
        dataset: [
            target
            for target in settings.shift
            if definitions[target].shift_of == dataset and target not in absent
        ]
        for dataset in settings.datasets
        if dataset not in absent
    }
    encoders = {name: cards[name] for name in settings.encoders}
    excluded = tuple(_excluded(settings, encoders, definitions, absent))
    left_out = {(encoder, dataset) for encoder, dataset, _ in excluded}
    cells = tuple(
        Cell(encoder, dataset)
        for dataset in settings.datasets
        for encoder in settings.encoders
        if (encoder, dataset) not in left_out
    )
    if not cells:
        raise ConfigError(_why_no_cell(absent))
    present = [*shift, *(target for targets in shift.values() for target in targets)]
    return Plan(
        settings=settings,
        encoders=encoders,
        datasets={name: definitions[name] for name in present},
        shift=shift,
        cells=cells,
        excluded=excluded,
    )


def _why_no_cell(absent: Mapping[str, str]) -> str:
    """Say why nothing is left to run: data are missing, or encoders skip the rest."""
    if not absent:
        return "no cell is left to run: every encoder has the datasets among its skip_datasets"
    about = "no cell is left to run: data are missing, and with missing=skip nothing is fetched"
    return "\n".join([about, *absent.values()])


def _check_names(
    key: str, names: Sequence[str], defined: Mapping[str, Any], files: Sequence[str]
) -> None:
    for name in names:
        if name not in defined:
            raise ConfigError(
                f"{key}: {name!r} is not defined in {', '.join(files)}; "
                f"defined: {', '.join(sorted(defined))}"
            )


def _check_roles(settings: Settings, definitions: Mapping[str, DatasetDefinition]) -> None:
    for name in settings.datasets:
        if definitions[name].shift_of is not None:
            raise ConfigError(
                f"datasets: {name} is a shift target of {definitions[name].shift_of}, "
                "with no training side; select it under shift"
            )
    for name in settings.shift:
        if definitions[name].shift_of is None:
            raise ConfigError(f"shift: {name} is no shift target: its definition has no shift_of")


def _check_skips(
    settings: Settings,
    cards: Mapping[str, EncoderCard],
    definitions: Mapping[str, DatasetDefinition],
) -> None:
    for encoder in settings.encoders:
        for dataset in cards[encoder].skip_datasets:
            if dataset not in definitions:
                raise ConfigError(
                    f"encoder {encoder}: skip_datasets: {dataset!r} is not defined; "
                    f"defined: {', '.join(sorted(definitions))}"
                )


def _check_reference(settings: Settings) -> None:
    """Refuse a reference that the run cannot be scored against, before anything runs."""
    for path in settings.reference_files:
        reference = load_reference(path, weights=Weights.named(settings.weights))
        reference.restrict(settings.datasets)


def _absent(settings: Settings, definitions: Mapping[str, DatasetDefinition]) -> dict[str, str]:
    """Return the selected data that are not there and how to get them, where they may be skipped.

    With ``missing: error`` nothing is looked at here: acquisition fetches them, or says how.
    """
    if settings.missing == "error":
        return {}
    selected = [
        *settings.datasets,
        *(name for name in settings.shift if definitions[name].shift_of in settings.datasets),
    ]
    found = {
        name: missing_data(definitions[name])
        for name in selected
        if definitions[name].phantom is None
    }
    return {name: message for name, message in found.items() if message is not None}


def _excluded(
    settings: Settings,
    encoders: Mapping[str, EncoderCard],
    definitions: Mapping[str, DatasetDefinition],
    absent: Mapping[str, str],
) -> Iterator[tuple[str, str, str]]:
    for dataset in settings.datasets:
        for encoder, card in encoders.items():
            if dataset in card.skip_datasets:
                yield encoder, dataset, "the released interface does not apply to this dataset"
            elif dataset in absent:
                yield encoder, dataset, "data missing"
    for target in settings.shift:
        if target in absent:
            for encoder in encoders:
                yield encoder, target, f"data missing: no shift of {definitions[target].shift_of}"
