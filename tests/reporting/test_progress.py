"""What people see while a run goes on, by a clock that stands still unless it is moved."""

import io
import subprocess
import sys

import pytest
import torch
from worlds import Clock

from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import RunSummary


def run_rounds(shown: ProgressDisplay, clock: Clock, first: int, last: int, seconds: float) -> None:
    shown.start(first, last)
    for number in range(first, last + 1):
        shown.round_started(number, 4)
        shown.clients_done(4)
        clock.now += seconds
        metrics = {"train/loss": 1 / number, "comm/total_up_bytes": 1000.0 * number}
        if number == 4:
            metrics["val/loss"] = 3.0
            metrics["val/accuracy"] = 0.5
        shown.round_done(number, metrics)
    shown.stop()


def test_plain_lines_are_the_first_the_last_and_one_in_two_seconds(clock):
    """Rounds of 0.75 s: the first line at 0.75 s, the next due at 2.75 s and written at the end of round 4 (3.0 s)."""
    stream = io.StringIO()
    run_rounds(ProgressDisplay(stream=stream), clock, 1, 6, 0.75)
    assert stream.getvalue().splitlines() == [
        "round 1/6 | train/loss 1 | up 1.0 kB | 0.75 s elapsed | 3.75 s left",
        "round 4/6 | train/loss 0.25 | val/accuracy 0.5 | up 4.0 kB | 3 s elapsed | 1.5 s left",
        "round 6/6 | train/loss 0.1667 | val/accuracy 0.5 (round 4) | up 6.0 kB | 4.5 s elapsed",
    ]


def test_many_fast_rounds_are_two_lines(clock):
    stream = io.StringIO()
    run_rounds(ProgressDisplay(stream=stream), clock, 1, 25_000, 1e-5)
    lines = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["round 1/25000", "round 25000/25000"]


def test_time_left_after_a_resumption_counts_its_own_rounds_only(clock):
    stream = io.StringIO()
    run_rounds(ProgressDisplay(stream=stream), clock, 91, 100, 4.0)
    assert "round 91/100 | train/loss 0.01099 | up 91.0 kB | 4 s elapsed | 36 s left" in stream.getvalue()


def test_run_that_is_stopped_shows_where_it_got_to(clock):
    stream = io.StringIO()
    shown = ProgressDisplay(stream=stream)
    shown.start(1, 10)
    shown.round_done(1, {})
    shown.round_done(2, {})
    shown.stop()
    shown.stop()
    assert [line.split(" | ")[0] for line in stream.getvalue().splitlines()] == ["round 1/10", "round 2/10"]


def test_metric_on_a_device_is_read_when_it_is_drawn(clock):
    stream = io.StringIO()
    shown = ProgressDisplay(stream=stream)
    shown.start(1, 10)
    shown.round_done(1, {"train/loss": torch.tensor(0.5)})
    assert "train/loss 0.5" in stream.getvalue()


def test_disabled_display_writes_nothing(clock):
    stream = io.StringIO()
    shown = ProgressDisplay(enabled=False, stream=stream, live=True)
    shown.message("before")
    run_rounds(shown, clock, 1, 3, 5.0)
    shown.show("table")
    assert stream.getvalue() == ""
    shown.show("what was asked for", always=True)
    assert "what was asked for" in stream.getvalue()


def test_messages_are_lines_also_outside_a_run(clock):
    stream = io.StringIO()
    shown = ProgressDisplay(stream=stream)
    shown.message("before")
    shown.start(1, 2)
    shown.message("[during]")
    shown.stop()
    assert stream.getvalue() == "before\n[during]\n"


@pytest.mark.parametrize("columns", ["100", "12"])
def test_bar_shows_rounds_clients_and_metrics(clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    shown = ProgressDisplay(stream=stream, live=True)
    shown.start(1, 4)
    shown.round_started(1, 4)
    clock.now += 1.0
    shown.clients_done(3)
    shown.message("a line [above]")
    shown.round_done(1, {"train/loss": 0.5, "comm/total_down_bytes": 2e6})
    clock.now += 1.0
    shown.round_done(2, {"val_acc": 0.25})
    shown.stop()
    written = stream.getvalue()
    assert "a line [above]\n" in written
    assert written.endswith("\x1b[?25h")  # the cursor is back
    if columns == "100":
        assert "clients 3/4" in written
        assert "0:00:02 elapsed, 0:00:02 left" in written
        assert "train/loss 0.5 | val_acc 0.25 | down 2.0 MB" in written


def test_file_gets_no_control_characters_even_if_colour_is_forced(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    shown = ProgressDisplay(stream=stream)
    shown.start(1, 1)
    shown.round_done(1, {"train/loss": 1.0})
    shown.stop()
    summary = RunSummary()
    summary.update(1, {"train/loss": 1.0})
    shown.show(summary.render(tmp_path))
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())


def test_plain_lines_do_without_richs_drawing():
    code = """
import sys
from lfl.reporting.progress import ProgressDisplay
shown = ProgressDisplay()
shown.start(1, 1)
shown.round_done(1, {"comm/total_up_bytes": 5000.0})
shown.stop()
assert "rich.console" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("round 1/1 | up 5.0 kB | ")
