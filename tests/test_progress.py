"""Progress: every item comes through; lines say how far, how fast and how long still."""

import logging

from crsbench.progress import progress, progress_line


def test_items_pass_unchanged_and_a_closing_line_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        assert list(progress(iter("abc"), total=3, what="reading", unit="files")) == list("abc")
    assert "reading: 3 files in" in caplog.text


def test_a_line_says_share_rate_and_time_left():
    line = progress_line(50, 200, seconds=10, what="extract", unit="images")
    assert line == "extract: 50/200 images (25%), 5.0/s, 30 s left"
