"""Files: atomic writes, exact round trips."""

import math
import subprocess
import sys

import polars as pl
import pytest

from crsbench.files import (
    read_metadata,
    read_parquet,
    sha256_file,
    write_csv,
    write_json,
    write_parquet,
    written_atomically,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table.csv"
    with written_atomically(path) as temporary:
        temporary.write_text("old")

    def fail_half_way() -> None:
        with written_atomically(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_successful_write_replaces_the_file_and_keeps_ordinary_permissions(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    with written_atomically(tmp_path / "new") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "new").read_text() == "whole"
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode


def test_parquet_keeps_values_and_metadata(tmp_path):
    frame = pl.DataFrame({"sample": ["a"], "value": [math.pi]})
    write_parquet(frame, tmp_path / "deep" / "f.parquet", metadata={"digest": "x"})
    assert read_parquet(tmp_path / "deep" / "f.parquet").equals(frame)
    assert read_metadata(tmp_path / "deep" / "f.parquet") == {"digest": "x"}


def test_csv_keeps_every_bit_of_a_float(tmp_path):
    values = [0.1 + 0.2, 1e-300, 1 / 3]
    write_csv(pl.DataFrame({"value": values}), tmp_path / "f.csv")
    assert pl.read_csv(tmp_path / "f.csv")["value"].to_list() == values


def test_json_refuses_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": math.nan}, tmp_path / "f.json")
    assert not (tmp_path / "f.json").exists()


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f").startswith("ba7816bf8f01cfea")


FULL_DISK = """
import resource, signal, sys
import numpy as np, polars as pl
from crsbench.files import write_csv, write_parquet
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
frame = pl.DataFrame({"value": np.random.default_rng(0).random(50_000)})
{"csv": write_csv, "parquet": write_parquet}[sys.argv[1]](frame, sys.argv[2])
"""


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_disk_that_fills_up_leaves_the_old_file_and_no_rest(kind, tmp_path):
    path = tmp_path / f"table.{kind}"
    path.write_text("old")
    finished = subprocess.run(
        [sys.executable, "-c", FULL_DISK, kind, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode != 0
    assert "Error" in finished.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
