"""Acceptance of code: a change that left results as they were makes no finished job run again.

Nothing is checked by running it: whoever accepts says that the new code computes the same. What is
accepted is one digest of code, so that the next change counts again. Results are not touched: they
keep the digest of the code that made them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from crsbench.errors import DataError, listed
from crsbench.plan import Plan
from crsbench.provenance import (
    SCRIPTS,
    Accepted,
    accepted_path,
    code_digest,
    read_accepted,
    write_accepted,
)
from crsbench.validation import first_fault


class Code(BaseModel):
    """The param that a job is identified by: its script, what that loads by name, the digest."""

    script: str
    modules: list[str]
    digest: str


class Params(BaseModel):
    """The one of a job's params that matters here; not every stage has it."""

    code: Code | None = None


class Provenance(BaseModel):
    """What a job's provenance file says of it."""

    rule: str
    wildcards: dict[str, str]
    params: Params
    outputs: list[Path]


class FinishedJob(BaseModel):
    """A job whose outputs are there."""

    stage: str
    provenance: Path
    code: Code

    def digest_today(self) -> str:
        """Return the digest of the same script and modules as they are now."""
        try:
            return code_digest(SCRIPTS / self.code.script, self.code.modules)
        except FileNotFoundError as error:
            raise DataError(
                f"accept {self.stage}: {error.filename} is gone, which made {self.provenance}; "
                "no file of another name can be accepted in its place"
            ) from error


def accept_code(plan: Plan, stages: Sequence[str], *, reason: str = "") -> list[str]:
    """Record in the store that today's code of some stages computes what that of their jobs did.

    Parameters
    ----------
    plan
        The plan of a run: only its jobs are looked at.
    stages
        Names of rules.
    reason
        Why the results are the same, for whoever reads the file.

    Returns
    -------
    list of str
        What was done, for each stage, and where it stands.

    Raises
    ------
    DataError
        A stage has no finished job, or today's code would stand for more than one; nothing is
        written then.
    """
    store = plan.settings.store
    finished = list(_finished_jobs(plan))
    accepted, lines = read_accepted(store), []
    for stage in stages:
        jobs = _of_stage(stage, finished, store)
        earlier = accepted.get(stage, {})
        stands_for = _what_code_stands_for(jobs, earlier, store)
        lines.append(_line(jobs, set(stands_for.values())))
        accepted[stage] = earlier | {
            today: Accepted(stands_for=made, reason=reason)
            for today, made in stands_for.items()
            if reason or today not in earlier  # said again without a reason: it keeps its own
        }
    accepted = {stage: entries for stage, entries in accepted.items() if entries}
    if accepted != read_accepted(store):
        path = write_accepted(accepted, store)
        lines.append(f"{path}: written; records keep the digest of the code that made them")
    return lines


def _finished_jobs(plan: Plan) -> Iterator[FinishedJob]:
    """Yield the run's finished jobs that code counts for, in the order of their files.

    Jobs without wildcards make the tables of one run; all others belong to the store.
    """
    run = Path(plan.settings.run_folder, "provenance")
    store = Path(plan.settings.store, "provenance")
    written = "[!.]*.json"  # a hidden one was being written when its job was killed
    for path in sorted({*run.rglob(written), *store.rglob(written)}):
        about = _read_provenance(path)
        in_run = run in path.parents if not about.wildcards else _selects(plan, about.wildcards)
        if about.params.code and in_run and all(output.exists() for output in about.outputs):
            yield FinishedJob(stage=about.rule, provenance=path, code=about.params.code)


def _selects(plan: Plan, wildcards: Mapping[str, str]) -> bool:
    selected = {
        "encoder": plan.encoders,
        "dataset": plan.datasets,
        "probe": plan.settings.probes,
    }
    return all(wildcards[name] in selected[name] for name in wildcards.keys() & selected.keys())


def _read_provenance(path: Path) -> Provenance:
    """Return what a job left; an unreadable file is an error: its job cannot be left out."""
    try:
        return Provenance.model_validate_json(path.read_bytes())
    except ValidationError as error:
        place, message = first_fault(error, path)
        raise DataError(
            f"{place}: no provenance of a job ({message}); delete the file and the job's "
            "outputs, which are then made again"
        ) from error


def _of_stage(stage: str, finished: Sequence[FinishedJob], store: str) -> list[FinishedJob]:
    jobs = [job for job in finished if job.stage == stage]
    if not jobs:
        others = sorted({job.stage for job in finished})
        hint = f"it has some of {', '.join(others)}" if others else "nor of any other; run it first"
        raise DataError(
            f"accept {stage}: {store} has no finished job of such a stage that code counts for; "
            f"{hint}"
        )
    return jobs


def _what_code_stands_for(
    jobs: Sequence[FinishedJob], earlier: Mapping[str, Accepted], store: str
) -> dict[str, str]:
    """Return, by each digest of today's code that made none of the jobs, the one that did.

    One stage has several where its jobs load modules by name.
    """
    made: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        made[job.digest_today()][job.code.digest].append(job.provenance)
    for today in made.keys() & earlier.keys():
        made[today][earlier[today].stands_for].append(accepted_path(store))
    for today, by_code in made.items():
        if len(by_code) > 1:
            raise DataError(_two_codes(jobs[0].stage, today, by_code))
    return {today: code for today, by_code in made.items() for code in by_code if code != today}


def _two_codes(stage: str, today: str, by_code: Mapping[str, list[Path]]) -> str:
    told = "; ".join(
        f"{'of today' if code == today else code[:12]}: {listed(paths, 1)}"
        for code, paths in sorted(by_code.items())
    )
    return (
        f"accept {stage}: jobs were made by different code, and today's can stand for one of them "
        f"only ({told}); delete the outputs of those that may be made again, or the entry in the "
        "file of accepted code"
    )


def _line(jobs: Sequence[FinishedJob], accepted: set[str]) -> str:
    n_accepted = sum(job.code.digest in accepted for job in jobs)
    if not n_accepted:
        return f"{jobs[0].stage}: all {len(jobs)} finished jobs were made by today's code"
    rest = f", {len(jobs) - n_accepted} more were" if n_accepted < len(jobs) else ""
    return f"{jobs[0].stage}: {n_accepted} finished jobs count as made by today's code{rest}"
