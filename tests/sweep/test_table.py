"""The table shows how far the runs are; a file gets a line for each that ends."""

import io
from pathlib import Path

import pytest
from worlds import Clock

from lfl.sweep.table import RunView, SweepDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(folder: Path, name: str = "lr=1") -> RunView:
    (folder / name / "run_000").mkdir(parents=True)
    return RunView(name, folder / name, max_rounds=10)


def log(view: RunView, text: str) -> None:
    (view.folder / "run_000" / "metrics.csv").write_text("round,train/loss,val_loss,val_acc\n" + text)


def test_the_time_left_counts_rounds_since_the_run_was_begun(tmp_path: Path, clock: Clock) -> None:
    run = view(tmp_path)
    run.begin()
    run.look()
    assert (run.round, run.seconds_left()) == (0, None)
    log(run, "4,0.5,,\n")  # goes on from a checkpoint
    run.look()
    clock.now += 6.0
    log(run, "4,0.5,,\n6,0.25,1.0,0.75\n")
    run.look()
    assert (run.round, run.seconds_left()) == (6, 12.0)
    assert run.values() == [("train/loss", 0.25), ("val_acc", 0.75)]


def test_a_file_gets_a_line_for_each_run_that_ends(tmp_path: Path) -> None:
    views = [view(tmp_path, "lr=1"), view(tmp_path, "lr=2")]
    stream = io.StringIO()
    with SweepDisplay(views, 1, stream) as display:
        display.begun(views[0])
        log(views[0], "10,0.5,,0.75\n")
        display.ended(views[0], "finished", "")
        display.begun(views[1])
        display.ended(views[1], "failed", "no money")
        display.draw()
        display.message("said")
    assert stream.getvalue().splitlines() == [
        "[1/2] lr=1: finished, round 10/10, train/loss 0.5, val_acc 0.75",
        "[2/2] lr=2: failed, round 0/10, no money",
        "said",
    ]


def test_a_terminal_gets_a_table(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "10")
    views = [view(tmp_path, f"lr={number}") for number in range(9)]
    stream = Terminal()
    with SweepDisplay(views, 2, stream) as display:
        display.begun(views[0])
        clock.now += 4.0
        display.ended(views[0], "finished", "")
        display.begun(views[7])
        log(views[7], "3,0.125,,0.75\n")
        display.draw()
        stream.truncate(0)
        display.draw()
        shown = stream.getvalue()
    assert "lr=7" in shown
    assert "running" in shown
    assert "3/10" in shown
    assert "0.125" in shown
    assert "1 running, 1 finished, 7 waiting, about 16 s left" in shown  # (4 + 7 * 4) s of two at a time
    assert "lr=6" not in shown  # there is no room for all
