"""A job: its log has the traceback, the terminal one message, and provenance says what ran."""

import json
import subprocess
import sys

import pytest

from crsbench.failures import Failure, failure_lines

SCRIPT = """
import logging, types, warnings
from crsbench.errors import DataError
from crsbench.jobs import job

snakemake = types.SimpleNamespace(
    rule="index",
    log=types.SimpleNamespace(job="logs/index.log", provenance="provenance/index.json"),
    threads=1,
    wildcards={{"dataset": "skin"}},
    params={{"code": {{"script": "index_dataset.py", "modules": [], "digest": "1a2b"}}}},
    output=["data/index.parquet"],
    config={{"store": "results"}},
)
with job(snakemake) as noted:
    logging.getLogger("crsbench.somewhere").info("three images")
    {body}
"""


@pytest.fixture
def run(tmp_path):
    def run(body):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT.format(body=body)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ('DataError("labels.csv: row 3 has no path")', "labels.csv: row 3 has no path"),
        ('ValueError("a fault")', "ValueError: a fault"),
        ('DataError("no images; get them\\nHTTP 503")', "no images; get them\nHTTP 503"),
        ('DataError("no images") from OSError("HTTP 503")', "no images"),
    ],
)
def test_a_failure_is_one_message_on_the_terminal_and_a_traceback_in_the_log(
    run, tmp_path, error, message
):
    ended = run(f"raise {error}")
    assert ended.returncode == 1
    assert ended.stderr == f"crsbench: index: {message}\n  log: logs/index.log\n"
    log = (tmp_path / "logs" / "index.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in log
    assert message.removeprefix("ValueError: ") in log
    assert "three images" in log
    assert not (tmp_path / "provenance").exists()
    first, *others = message.splitlines()
    listed = failure_lines([Failure("index", [tmp_path / "logs" / "index.log"], "")], since=0)
    assert listed[1:-1] == [f"  index: {first}", *(f"    {line}" for line in others)]


def test_a_job_that_ends_well_leaves_its_log_and_provenance_and_says_nothing(run, tmp_path):
    ended = run("pass")
    assert (ended.returncode, ended.stderr) == (0, "")
    log = (tmp_path / "logs" / "index.log").read_text(encoding="utf-8")
    assert "crsbench.somewhere: three images" in log
    provenance = json.loads((tmp_path / "provenance" / "index.json").read_text("utf-8"))
    assert provenance["rule"] == "index"
    assert provenance["wildcards"] == {"dataset": "skin"}
    assert provenance["params"]["code"]["script"] == "index_dataset.py"
    assert provenance["outputs"] == ["data/index.parquet"]
    assert provenance["code_digest"] == "1a2b"
    assert provenance["threads"] == 1
    assert {"numpy", "polars", "torch"} <= set(provenance["packages"])


def test_what_a_script_notes_stands_in_the_provenance(run, tmp_path):
    run("noted['device'] = 'cuda (Some GPU)'")
    provenance = json.loads((tmp_path / "provenance" / "index.json").read_text("utf-8"))
    assert provenance["device"] == "cuda (Some GPU)"
    assert provenance["rule"] == "index"


def test_warnings_are_in_the_log(run, tmp_path):
    run('warnings.warn("an odd file", stacklevel=1)')
    log = (tmp_path / "logs" / "index.log").read_text(encoding="utf-8")
    assert "UserWarning: an odd file" in log


def test_no_secret_of_a_link_is_told_or_written(run, tmp_path):
    link = "https://h/f.zip?sig=SECRET"
    ended = run(f"""
    try:
        raise OSError("{link}")
    except OSError as error:
        logging.getLogger("urllib3").warning("retrying {link}")
        raise ValueError("cannot get {link}") from error
""")
    log = (tmp_path / "logs" / "index.log").read_text(encoding="utf-8")
    assert "f.zip?sig=[redacted]" in log
    assert "f.zip?sig=[redacted]" in ended.stderr
    assert "SECRET" not in log + ended.stderr
