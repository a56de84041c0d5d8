"""Look before a run: what is here, what is missing and how to get it, what the run will take.

Nothing is computed, fetched or written, no socket is opened and torch is not imported. Tokens are
never read out: whether there is one is all that is asked.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from crsbench.datasets.definitions import DatasetDefinition, load_definitions, missing_data
from crsbench.encoders.presence import find_weights
from crsbench.errors import DataError
from crsbench.estimates import GB, Work, count_images, logit_bytes, remaining_work
from crsbench.plan import Plan
from crsbench.summary import aligned

_PAGE = re.compile(r"https?://\S+")


def examine(plan: Plan) -> Iterator[str]:
    """Return the findings line by line.

    Raises
    ------
    DataError
        After the last line: something that the run needs is missing.
    """
    encoders, lacking = _encoders(plan)
    yield from encoders
    yield ""
    datasets, absent = _datasets(plan)
    yield from datasets
    yield ""
    lines, short = _needs(plan)
    yield from lines
    faults = [*lacking, *absent, *short]
    if faults:
        raise DataError(f"not ready: {', '.join(faults)}; each line above says what to do")


def _encoders(plan: Plan) -> tuple[list[str], list[str]]:
    table, lacking = [("encoder", "weights", "what to do")], []
    for card in plan.encoders.values():
        found = find_weights(
            card, Path(plan.settings.store) / "weights" / f"{card.name}.safetensors"
        )
        state = f"{found.state}, unpinned" if found.unpinned else found.state
        advice = f"{found.advice} ({found.unpinned})" if found.unpinned else found.advice
        table.append((card.name, state, advice))
        if found.state != "present":
            lacking.append(f"{card.name} {found.state}")
    return aligned(table), lacking


def _datasets(plan: Plan) -> tuple[list[str], list[str]]:
    settings = plan.settings
    definitions = load_definitions(
        settings.dataset_definitions, data_root=settings.data_root, store=settings.store
    )
    table, absent = [("dataset", "data", "what to do")], []
    for name in _selected(plan, definitions):
        definition = definitions[name]
        if definition.phantom is not None:
            table.append((name, "present", "drawn by the workflow"))
            continue
        message = missing_data(definition)
        if message is None:
            table.append((name, "present", str(definition.root)))
        elif settings.missing == "skip":
            table.append((name, "missing, skipped", _advice(definition, message)))
        else:
            table.append((name, "missing", _advice(definition, message)))
            absent.append(f"{name} missing")
    return aligned(table), absent


def _selected(plan: Plan, definitions: dict[str, DatasetDefinition]) -> list[str]:
    """Return the selected datasets and the shift targets of any of them."""
    selected = list(plan.settings.datasets)
    targets = [t for t in plan.settings.shift if definitions[t].shift_of in selected]
    return [*selected, *targets]


def _advice(definition: DatasetDefinition, message: str) -> str:
    """Return what is missing, with the first line and the first page of how to get it."""
    lacking = message.splitlines()[0].removeprefix(f"{definition.name}: ")
    terms = definition.access.strip().splitlines()
    page = _PAGE.search(definition.access)
    known = [terms[0].rstrip(":.") if terms else "", page[0] if page else ""]
    return "; ".join([lacking, *filter(None, known)])


def _needs(plan: Plan) -> tuple[list[str], list[str]]:
    store = plan.settings.store
    counted = {name: count_images(each, store) for name, each in plan.datasets.items()}
    n_images = {name: number for name, number in counted.items() if number is not None}
    work = remaining_work(plan, n_images)
    logits = logit_bytes(plan, n_images)
    sizes = {
        "clean features": sum(w.bytes_clean for w in work),
        "depth": sum(w.bytes_depth for w in work),
        "perturbed": sum(w.bytes_perturbed for w in work),
        "logits": logits,
        "weights": sum(w.bytes_weights for w in work),
    }
    disk = sum(sizes.values())
    free = _free_bytes(Path(store))
    parts = [f"{name} {size / GB:.1f}" for name, size in sizes.items()]
    largest = max(work, key=lambda w: w.memory)
    lines = [
        "still to do, estimated (docs/cluster.md says from what):",
        *_work_table(work),
        f"disk: {disk / GB:.1f} GB before compression ({', '.join(parts)}); "
        f"{free / GB:.1f} GB free at {store}",
        f"memory: {largest.memory / GB:.0f} GB for the largest extraction job ({largest.encoder})",
        f"time: {sum(w.gpu_hours for w in work):.1f} GPU hours, and "
        f"{sum(w.core_hours for w in work):.0f} core hours beside them to make the images",
    ]
    unknown = sorted(set(counted) - set(n_images))
    if unknown:
        lines.append(f"not counted, for want of their number of images: {', '.join(unknown)}")
    short = [f"disk {disk / GB:.1f} GB, free {free / GB:.1f}"] if disk > free else []
    return lines, short


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
