"""Progress: every item comes through; lines say how far, how fast and how long still."""

import io
import logging
import re
import sys
import time
from functools import partial

import pytest
from tqdm import tqdm

from crsbench import progress as progress_module
from crsbench.progress import meter, progress, progress_line


def test_items_pass_unchanged_and_a_closing_line_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        assert list(progress(iter("abc"), total=3, what="reading", unit="files")) == list("abc")
    assert "reading: 3 files in" in caplog.text


def test_a_line_says_share_rate_and_time_left():
    line = progress_line(50, 200, seconds=10, what="extract", unit="images")
    assert line == "extract: 50/200 images (25%), 5.0/s, 30 s left"


def test_what_an_earlier_try_did_does_not_count_for_the_rate():
    line = progress_line(150, 200, seconds=10, what="fetch", unit="MB", before=100)
    assert line == "fetch: 150/200 MB (75%), 5.0/s, 10 s left"


def test_of_an_unknown_total_the_rate_is_told():
    line = progress_line(50, None, seconds=10, what="fetch", unit="MB")
    assert line == "fetch: 50 MB, 5.0/s"


def test_work_that_is_slower_than_a_unit_a_line_goes_on(caplog, monkeypatch):
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    with (
        caplog.at_level(logging.INFO),
        meter(total=3, what="fetch", unit="MB", before=1) as advance,
    ):
        advance(0)
    assert "fetch: 1/3 MB (33%), 0.0/s, time left unknown" in caplog.text
    assert "fetch: 2 MB in " in caplog.text


class Stream(io.StringIO):
    """Standard error, on a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown_of_three_files(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """Return what standard error got while three files were read."""
    stream = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "tqdm", partial(tqdm, mininterval=0))
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    for _ in progress(range(3), total=3, what="reading", unit="files"):
        time.sleep(0.01)
    return stream.getvalue()


def test_on_a_terminal_one_line_is_rewritten_with_rate_and_time_left(monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        shown = shown_of_three_files(monkeypatch, terminal=True)
    assert "\n" not in shown
    *states, blank, end = shown.split("\r")
    bar = r"reading: +67%\|.*\| 2/3 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+files/s\]"
    assert any(re.fullmatch(bar, state.rstrip()) for state in states)
    assert (blank.strip(), end) == ("", "")
    assert [record.message[:20] for record in caplog.records] == ["reading: 3 files in "]


def test_elsewhere_plain_lines_go_to_the_log_and_no_bar_is_drawn(monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        assert shown_of_three_files(monkeypatch, terminal=False) == ""
    first, second, last = (record.message for record in caplog.records)
    line = r"reading: 1/3 files \(33%\), [\d.]+/s, \d+ s left"
    assert re.fullmatch(line, first)
    assert second.startswith("reading: 2/3 files (67%), ")
    assert last.startswith("reading: 3 files in ")
