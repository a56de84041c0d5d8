"""Bring the weights of a run here: its weights stage alone, on this machine, encoder by encoder.

Snakemake runs the stage, so that the run finds its files finished and does not make them again.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from crsbench.errors import WeightsError
from crsbench.plan import Plan

#: The line of a job's log with its error (`crsbench.jobs`).
_ERROR = re.compile(r"^\S+ \S+ ERROR crsbench\.jobs: (.*)$", re.MULTILINE)


def prefetch_weights(plan: Plan, options: Sequence[str]) -> Iterator[str]:
    """Fetch and convert the weights of every encoder of a plan.

    A failure does not stop the other encoders.

    Parameters
    ----------
    plan
        The plan of the run.
    options
        ``--configfile`` and ``--config`` as the plan was made with.

    Raises
    ------
    WeightsError
        After the last line: the encoders whose weights are not there, each with its reason.
    """
    store = Path(plan.settings.store)
    targets = {name: store / "weights" / f"{name}.safetensors" for name in plan.encoders}
    status = subprocess.run(_command(targets.values(), options), env=_environment()).returncode
    done = [name for name, path in targets.items() if path.is_file()]
    failed = [name for name in targets if name not in done]
    yield f"weights of {len(done)} of {len(targets)} encoders are in {store / 'weights'}"
    for name in failed:
        yield f"missing: {_reason(store / 'logs' / 'weights' / f'{name}.log', name)}"
    if failed:
        raise WeightsError(f"no weights of {', '.join(failed)}; the lines above say why")
    if status != 0:
        raise WeightsError(f"snakemake ended with status {status}; its own message is above")


def _command(targets: Iterable[Path], options: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "snakemake", *map(str, targets)),
        *("--executor", "local", "--cores", "1", "--keep-going", "--quiet", "rules", *options),
    ]


def _environment() -> dict[str, str]:
    """Return the environment without a profile: a cluster's would send the jobs to its nodes."""
    return {key: value for key, value in os.environ.items() if key != "SNAKEMAKE_PROFILE"}


def _reason(log: Path, name: str) -> str:
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    found = _ERROR.findall(text)
    return found[-1] if found else f"{name}: no job reported why; see snakemake's message"
