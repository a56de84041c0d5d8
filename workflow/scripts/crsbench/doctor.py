"""Look before a run: what is here, what is missing and how to get it, what the run will take.

Nothing is computed, fetched or written, no socket is opened and torch is not imported. Tokens are
never read out: whether there is one is all that is asked.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crsbench.datasets.definitions import DatasetDefinition, load_definitions
from crsbench.datasets.presence import DataPresence, find_data
from crsbench.encoders.fetching import is_offline
from crsbench.encoders.presence import find_weights
from crsbench.errors import DataError
from crsbench.estimates import GB, Work, count_images, logit_bytes, remaining_work
from crsbench.plan import Plan
from crsbench.summary import aligned

_FETCHED = "missing, fetched by the run"
_SKIPPED = "missing, skipped"
_ALLOWED = "digest mismatch, allowed"
_NO_FAULT = {"present", _FETCHED, _SKIPPED, _ALLOWED}


def examine(plan: Plan) -> Iterator[str]:
    """Return the findings line by line; the last says that the run can start.

    What the run fetches by itself is no fault.

    Raises
    ------
    DataError
        In place of the last line: something that the run needs is missing.
    """
    encoders = _encoders(plan)
    yield from _table(("encoder", "weights", "what to do"), encoders)
    yield ""
    datasets = _datasets(plan)
    yield from _table(("dataset", "data", "what to do"), datasets)
    yield ""
    lines, short = _needs(plan)
    yield from lines
    found = [*encoders, *datasets]
    faults = [f"{each.name} {each.state}" for each in found if each.state not in _NO_FAULT]
    if faults or short:
        raise DataError(
            f"not ready: {', '.join([*faults, *short])}; each line above says what to do"
        )
    to_fetch = [each.name for each in found if each.state == _FETCHED]
    fetching = f"; the run itself fetches {', '.join(to_fetch)}" if to_fetch else ""
    yield f"ready{fetching}"


class _Finding(NamedTuple):
    """What a line says of an encoder or a dataset; `shown` is its state with what qualifies it."""

    name: str
    state: str
    shown: str
    advice: str


def _table(header: tuple[str, str, str], findings: list[_Finding]) -> list[str]:
    return aligned([header, *((each.name, each.shown, each.advice) for each in findings)])


def _encoders(plan: Plan) -> list[_Finding]:
    findings = []
    for card in plan.encoders.values():
        found = find_weights(
            card, Path(plan.settings.store) / "weights" / f"{card.name}.safetensors"
        )
        shown = f"{found.state}, unpinned" if found.unpinned else found.state
        advice = f"{found.advice} ({found.unpinned})" if found.unpinned else found.advice
        findings.append(_Finding(card.name, found.state, shown, advice))
    return findings


def _datasets(plan: Plan) -> list[_Finding]:
    settings = plan.settings
    definitions = load_definitions(
        settings.dataset_definitions, data_root=settings.data_root, store=settings.store
    )
    return [
        _of_data(name, find_data(definitions[name], offline=is_offline()), plan)
        for name in _selected(plan, definitions)
    ]


def _of_data(name: str, found: DataPresence, plan: Plan) -> _Finding:
    """Return the finding on a dataset, with what the settings let pass."""
    state, advice = str(found.state), found.advice
    if name not in plan.datasets and state != "present":
        state = _SKIPPED
    elif state == "digest mismatch" and plan.settings.unlike_release == "warn":
        state, advice = _ALLOWED, f"{advice}; as unlike_release=warn is set, the run goes on"
    elif state == "digest mismatch":
        advice = f"{advice}, or set unlike_release=warn where another is meant"
    return _Finding(name, state, state, advice)


def _selected(plan: Plan, definitions: dict[str, DatasetDefinition]) -> list[str]:
    """Return the selected datasets and the shift targets of any of them."""
    selected = list(plan.settings.datasets)
    targets = [t for t in plan.settings.shift if definitions[t].shift_of in selected]
    return [*selected, *targets]


def _needs(plan: Plan) -> tuple[list[str], list[str]]:
    """Return what the run will take, and what of it the machine has not got."""
    store = plan.settings.store
    counted = {name: count_images(each, store) for name, each in plan.datasets.items()}
    n_images = {name: number for name, number in counted.items() if number is not None}
    work = remaining_work(plan, n_images)
    disk, scarce_disk = _disk(work, logit_bytes(plan, n_images), store)
    memory, scarce_memory = _memory(work)
    lines = [
        "still to do, estimated (docs/cluster.md says from what):",
        *_work_table(work),
        disk,
        memory,
        f"time: {sum(w.gpu_hours for w in work):.1f} GPU hours, and "
        f"{sum(w.core_hours for w in work):.0f} core hours beside them to make the images",
    ]
    unknown = sorted(set(counted) - set(n_images))
    if unknown:
        lines.append(f"not counted, for want of their number of images: {', '.join(unknown)}")
    return lines, [*scarce_disk, *scarce_memory]


def _disk(work: list[Work], logits: float, store: str) -> tuple[str, list[str]]:
    sizes = {
        "clean features": sum(w.bytes_clean for w in work),
        "depth": sum(w.bytes_depth for w in work),
        "perturbed": sum(w.bytes_perturbed for w in work),
        "logits": logits,
        "weights": sum(w.bytes_weights for w in work),
    }
    disk, free = sum(sizes.values()), _free_bytes(Path(store))
    parts = [f"{name} {size / GB:.1f}" for name, size in sizes.items()]
    line = (
        f"disk: {disk / GB:.1f} GB before compression ({', '.join(parts)}); "
        f"{free / GB:.1f} GB free at {store}"
    )
    return line, [f"disk {disk / GB:.1f} GB, free {free / GB:.1f}"] if disk > free else []


def _memory(work: list[Work]) -> tuple[str, list[str]]:
    largest = max(work, key=lambda w: w.memory)
    if largest.memory == 0:
        return "memory: no extraction is left", []
    needed, has = largest.memory, _machine_bytes()
    line = f"memory: {needed / GB:.1f} GB for the largest extraction job ({largest.encoder})"
    if has is None:
        return f"{line}; how much this machine has is not known", []
    scarce = [f"memory {needed / GB:.1f} GB, this machine has {has / GB:.1f}"]
    return f"{line}; this machine has {has / GB:.1f} GB", scarce if needed > has else []


def _work_table(work: list[Work]) -> list[str]:
    table = [("encoder", "images", "of which perturbed", "GPU hours", "cores a GPU needs")]
    for each in work:
        images = each.n_clean + each.n_perturbed
        table.append(
            (
                each.encoder,
                f"{images:,}",
                f"{each.n_perturbed:,}",
                f"{each.gpu_hours:.2f}",
                f"{each.cores_per_gpu:.1f}" if images else "-",
            )
        )
    return aligned(table)


def _free_bytes(folder: Path) -> int:
    """Return the free bytes of the file system that a folder is on, or would be on."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return shutil.disk_usage(existing).free


def _machine_bytes() -> int | None:
    """Return the memory of this machine in bytes; None where the system does not say."""
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(os.sysconf_names):
        return None
    pages = os.sysconf("SC_PHYS_PAGES")
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
