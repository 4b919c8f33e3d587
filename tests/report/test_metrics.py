"""The metric of a report, and its targets."""

from pathlib import Path

import pandas as pd
import pytest

from lfl.report.metrics import Target, choose_metrics, parse_target
from lfl.report.runs import ReportError, Run


def runs_with(*names: str) -> list[Run]:
    return [Run(Path("run"), metrics={name: pd.Series([1.0], index=[1]) for name in names})]


def test_the_validation_accuracy_comes_first() -> None:
    assert choose_metrics(runs_with("train/loss", "lr", "val_loss", "val_acc")) == ["val_acc", "val_loss", "train/loss"]
    assert choose_metrics(runs_with("train/loss", "val_loss")) == ["val_loss", "train/loss"]
    assert choose_metrics(runs_with("comm/up_bytes", "time/round_s", "strange")) == ["strange"]
    with pytest.raises(ReportError, match="bytes and times only"):
        choose_metrics(runs_with("comm/up_bytes", "sim/time"))


def test_what_is_asked_for_is_taken_and_near_names_are_told() -> None:
    runs = runs_with("train/loss", "val_acc", "time/round_s")
    assert choose_metrics(runs, ["time/round_s", "val_acc", "val_acc"]) == ["time/round_s", "val_acc"]
    with pytest.raises(ReportError, match=r"^`--metric val_ac`: no run has this metric; did you mean val_acc\?$"):
        choose_metrics(runs, ["val_ac"])
    with pytest.raises(ReportError, match=r"there are train/loss, val_acc\.$"):
        choose_metrics(runs, ["zzzz"])


def test_targets() -> None:
    known = ["val_acc", "val_loss", "weird"]
    assert parse_target("val_acc=0.9", known) == Target("val_acc", 0.9, 1)
    assert parse_target("val_loss=1e-3", known) == Target("val_loss", 1e-3, -1)
    assert parse_target("weird<=3", known) == Target("weird", 3.0, -1)
    for text, said in (
        ("val_acc", "is no target"),
        ("val_acc=much", "is no target"),
        ("val_ac=1", "did you mean val_acc"),
        ("weird=3", "write 'weird>=3' or 'weird<=3'"),
    ):
        with pytest.raises(ReportError, match=said):
            parse_target(text, known)


def test_the_first_round_that_reaches_a_target() -> None:
    series = pd.Series([0.1, 0.5, 0.4, 0.6], index=[2, 4, 6, 8])
    assert Target("val_acc", 0.5, 1).first(series) == 4
    assert Target("val_loss", 0.1, -1).first(series) == 2
    assert Target("val_acc", 0.7, 1).first(series) is None
