"""The command line: ``crsbench VERB``, from the project's folder.

Verbs that concern a run take ``--configfile`` and ``--config`` as Snakemake does.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from crsbench.axes import AXES_TABLE, read_axes_table
from crsbench.candidates import COLUMNS, read_candidates, score_candidates
from crsbench.config import Source, merge_all, read_source
from crsbench.crs import Weights
from crsbench.errors import ConfigError, CrsBenchError, DataError
from crsbench.plan import Plan, make_plan
from crsbench.reference import Member, cohort_reference, freeze_reference, load_reference
from crsbench.summary import candidate_lines, plan_lines, table_lines

BASE_CONFIG = "config/config.yaml"
REFERENCES = Path("resources/references")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        for line in parsed.verb(parsed):
            print(line)
    except CrsBenchError as error:
        print(f"crsbench: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crsbench", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    about = "list the cells of a run and how many records each yields"
    _of_a_run(_verb(verbs, "plan", _plan, about))
    about = "print a run's table of scores, its notes and the paths of its results"
    _of_a_run(_verb(verbs, "show", _show, about))
    _add_score(verbs)
    _add_reference(verbs)
    return parser


Verb = Callable[[argparse.Namespace], list[str]]


def _verb(verbs: Any, name: str, run: Verb, about: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=about)
    verb.set_defaults(verb=run)
    return verb


def _of_a_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--configfile", nargs="+", default=[], metavar="FILE")
    verb.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE")


def _add_score(verbs: Any) -> None:
    about = "score encoders of your own against a reference, whose scores stay as they are"
    score = _verb(verbs, "score", _score, about)
    columns = ", ".join(COLUMNS)
    score.add_argument("axes", type=Path, metavar="AXES.csv", help=f"columns {columns}")
    score.add_argument("--reference", type=Path, required=True, metavar="FILE")


def _add_reference(verbs: Any) -> None:
    about = "what scores are relative to"
    reference = verbs.add_parser("reference", help=about, description=about)
    acts = reference.add_subparsers(required=True, metavar="ACT")
    about = "write a run's panel, its axes, anchors and weights to a new file, for good"
    freeze = _verb(acts, "freeze", _freeze, about)
    freeze.add_argument(
        "name", metavar="NAME", help=f"a name in {REFERENCES}, or a path to a .json"
    )
    _of_a_run(freeze)


def _plan(parsed: argparse.Namespace) -> list[str]:
    return plan_lines(_read_plan(parsed))


def _show(parsed: argparse.Namespace) -> list[str]:
    return table_lines(Path(_read_plan(parsed).settings.run_folder))


def _score(parsed: argparse.Namespace) -> list[str]:
    reference = load_reference(parsed.reference)
    supplements = [name for name in AXES_TABLE if name not in COLUMNS]
    candidates = read_candidates(parsed.axes, reference, supplements=supplements)
    table = score_candidates(candidates, reference=reference)
    return candidate_lines(table, set(candidates["encoder"]))


def _freeze(parsed: argparse.Namespace) -> list[str]:
    plan = _read_plan(parsed)
    path = _reference_path(parsed.name)
    axes = Path(plan.settings.run_folder) / "axes.csv"
    if not axes.is_file():
        raise DataError(f"{axes}: no axes yet; run snakemake with the same options")
    reference = cohort_reference(
        read_axes_table(axes),
        encoders=[Member(*names) for names in plan.encoder_names],
        weights=Weights.named(plan.settings.weights),
        name=path.stem,
        run=plan.settings.run_folder,
    )
    freeze_reference(reference, path)
    return [f"{path}: reference {reference.name} {reference.digest}"]


def _reference_path(name: str) -> Path:
    path = Path(name)
    if path.name == name and not path.suffix:
        return REFERENCES / f"{name}.json"
    if path.suffix != ".json":
        raise ConfigError(f"reference {name}: expected a name without dots, or a path to a .json")
    return path


def _read_plan(parsed: argparse.Namespace) -> Plan:
    files = [BASE_CONFIG, *parsed.configfile]
    pairs = Source("--config", dict(_pair(text) for text in parsed.config))
    return make_plan(merge_all([*map(read_source, files), pairs]), files=files)


def _pair(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--config: expected KEY=VALUE, got {text!r}")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {key}: not valid YAML: {value!r}") from error
