"""Progress: every item comes through; lines say how far, how fast and how long still."""

import logging

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
