"""The command line: ``crsbench VERB``, from the project's folder.

Verbs that concern a run take ``--configfile`` and ``--config`` as Snakemake does.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from crsbench.config import Source, merge_all, read_source
from crsbench.errors import ConfigError, CrsBenchError
from crsbench.plan import Plan, make_plan
from crsbench.summary import plan_lines, table_lines

BASE_CONFIG = "config/config.yaml"


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
    for name, verb, about in (
        ("plan", _plan, "list the cells of a run and how many records each yields"),
        ("show", _show, "print a run's table of scores, its notes and the paths of its results"),
    ):
        sub = verbs.add_parser(name, help=about, description=about)
        sub.set_defaults(verb=verb)
        sub.add_argument("--configfile", nargs="+", default=[], metavar="FILE")
        sub.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE")
    return parser


def _plan(parsed: argparse.Namespace) -> list[str]:
    return plan_lines(_read_plan(parsed))


def _show(parsed: argparse.Namespace) -> list[str]:
    return table_lines(Path(_read_plan(parsed).settings.run_folder))


def _read_plan(parsed: argparse.Namespace) -> Plan:
    files = [BASE_CONFIG, *parsed.configfile]
    pairs = Source("--config", dict(_pair(text) for text in parsed.config))
    return make_plan(merge_all([*map(read_source, files), pairs]), files=files)


def _pair(text: str) -> tuple[str, object]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--config: expected KEY=VALUE, got {text!r}")
    return key, yaml.safe_load(value)
