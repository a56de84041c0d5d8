"""The command line: ``crsbench VERB``, from the project's folder.

Verbs that concern a run take ``--configfile`` and ``--config`` as Snakemake does.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from crsbench.accepted_code import accept_code
from crsbench.axes import AXES_TABLE, read_axes_table
from crsbench.candidates import COLUMNS, read_candidates, score_candidates
from crsbench.config import Source, merge_all, read_source
from crsbench.crs import Weights
from crsbench.doctor import examine
from crsbench.encoders.cards import load_cards
from crsbench.errors import ConfigError, CrsBenchError, DataError
from crsbench.plan import Plan, make_plan
from crsbench.prefetch import prefetch_weights
from crsbench.reference import Member, cohort_reference
from crsbench.reference_files import freeze_reference, load_reference
from crsbench.summary import candidate_lines, plan_lines, table_lines

BASE_CONFIG = "config/config.yaml"
REFERENCES = Path("resources/references")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        for line in parsed.verb(parsed):
            print(line, flush=True)
    except CrsBenchError as error:
        print(f"crsbench: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crsbench", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    about = "list the cells of a run and how many records each yields"
    _of_a_run(_verb(verbs, "plan", _plan, about))
    about = "say before a run what is missing, how to get it, and what the run will take"
    _of_a_run(_verb(verbs, "doctor", _doctor, about))
    about = (
        "fetch, check and convert the weights of all encoders of a run, files of your own too, so "
        "that it can run offline"
    )
    _of_a_run(_verb(verbs, "prefetch", _prefetch, about))
    _add_card(verbs)
    about = "print a run's table of scores, its notes and the paths of its results"
    _of_a_run(_verb(verbs, "show", _show, about))
    _add_score(verbs)
    _add_reference(verbs)
    _add_accept(verbs)
    return parser


Verb = Callable[[argparse.Namespace], Iterable[str]]


def _verb(verbs: Any, name: str, run: Verb, about: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=about)
    verb.set_defaults(verb=run)
    return verb


def _of_a_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--configfile", nargs="+", default=[], metavar="FILE")
    verb.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE")


def _add_card(verbs: Any) -> None:
    about = "print an encoder's card with all that it leaves out, and draw what the encoder sees"
    card = _verb(verbs, "card", _card, about)
    card.add_argument("name", metavar="NAME", help="an encoder of encoder_definitions")
    card.add_argument("--image", type=Path, metavar="FILE", help="an image; else one is drawn")
    _of_a_run(card)


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


def _add_accept(verbs: Any) -> None:
    about = "say that a change of code left the results of stages as they were: no job runs again"
    accept = _verb(verbs, "accept", _accept, about)
    accept.add_argument("stages", nargs="+", metavar="STAGE", help="a rule, such as evaluate")
    accept.add_argument("--reason", default="", metavar="TEXT", help="kept beside the digest")
    _of_a_run(accept)


def _plan(parsed: argparse.Namespace) -> list[str]:
    return plan_lines(_read_plan(parsed))


def _doctor(parsed: argparse.Namespace) -> Iterator[str]:
    return examine(_read_plan(parsed))


def _prefetch(parsed: argparse.Namespace) -> Iterator[str]:
    options = [
        *(["--configfile", *parsed.configfile] if parsed.configfile else []),
        *(["--config", *parsed.config] if parsed.config else []),
    ]
    return prefetch_weights(_read_plan(parsed), options)


def _card(parsed: argparse.Namespace) -> Iterator[str]:
    from crsbench.card_check import check_card  # imports torch, which no other verb needs

    settings = _read_plan(parsed).settings
    cards = load_cards(settings.encoder_definitions)
    if parsed.name not in cards:
        raise ConfigError(
            f"card {parsed.name}: not defined in {', '.join(settings.encoder_definitions)}; write "
            "an entry for it (docs/add-an-encoder.md), or name its file in encoder_definitions "
            "(--config 'encoder_definitions=[config/encoders.yaml,my_encoders.yaml]'), or take one "
            f"of {', '.join(cards)}"
        )
    picture = Path(settings.store) / "cards" / f"{parsed.name}.png"
    return check_card(
        cards[parsed.name], parsed.image, picture=picture, max_side_px=settings.max_side_px
    )


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


def _accept(parsed: argparse.Namespace) -> list[str]:
    return accept_code(_read_plan(parsed), parsed.stages, reason=parsed.reason)


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
