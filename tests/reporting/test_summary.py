"""Best and last values of a run, and its table."""

import io

import torch
from rich.console import Console

from lfl.reporting.progress import ProgressDisplay
from lfl.reporting.summary import RunSummary


def summary_of(*rounds: dict[str, float]) -> RunSummary:
    summary = RunSummary()
    for number, metrics in enumerate(rounds, start=1):
        summary.update(number, metrics)
    return summary


def test_best_is_the_highest_accuracy_and_the_lowest_loss():
    summary = summary_of(
        {"val_acc": 0.5, "val_loss": 2.0, "val_f1": 0.25, "val_perplexity": 9.0, "val_size": 1.0},
        {"val_acc": 0.75, "val_loss": 1.0, "val_f1": 0.5, "val_perplexity": 7.0, "val_size": 2.0},
        {"val_acc": 0.75, "val_loss": 3.0, "val_f1": 0.125, "val_perplexity": 8.0, "val_size": 0.0},
        {"train/loss": 0.5},
    )
    assert summary.best("val_acc") == (0.75, 2)  # the first of equal ones
    assert summary.last("val_acc") == (0.75, 3)
    assert summary.best("val_loss") == (1.0, 2)
    assert summary.best("val_f1") == (0.5, 2)
    assert summary.best("val_perplexity") == (7.0, 2)
    assert summary.best("val_size") is None
    assert summary.last("val_size") == (0.0, 3)
    assert summary.last("absent") is None
    assert list(summary.bests) == ["val_acc", "val_loss", "val_f1", "val_perplexity", "train/loss"]
    assert summary.bests["val_f1"] == (0.5, 2)


def test_nan_is_never_the_best():
    summary = summary_of({"val_acc": float("nan")}, {"val_acc": 0.25}, {"val_acc": float("nan")})
    assert summary.best("val_acc") == (0.25, 2)


def test_resumed_summary_equals_the_unbroken_one_and_leaves_out_the_pause(clock, tmp_path):
    rounds = [{"val_acc": 0.5, "train/loss": 3.0}, {"val_acc": 0.75}, {"val_acc": 0.25, "comm/total_up_bytes": 1e6}]
    unbroken, first, second = RunSummary(), RunSummary(), RunSummary()
    for number, metrics in enumerate(rounds, start=1):
        clock.now += 2.0
        unbroken.update(number, metrics)
        if number <= 2:
            first.update(number, metrics)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    clock.now += 1000.0
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    clock.now += 2.0
    second.update(3, rounds[2])
    assert second.state_dict() == unbroken.state_dict()
    assert second.seconds == 6.0


def test_table_has_every_number(clock):
    summary = RunSummary()
    for number, accuracy in enumerate((0.5, 0.875, 0.75), start=1):
        clock.now += 1.5
        summary.update(
            number,
            {
                "train/loss": 1 / number,
                "val_acc": accuracy,
                "comm/total_up_bytes": 1.5e6 * number,
                "comm/total_down_bytes": 3e6 * number,
            },
        )
    stream = io.StringIO()
    Console(file=stream, width=80).print(summary.render("/runs/one"))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]
    assert lines[0] == "metric best round last round"
    assert lines[2:] == [
        "val_acc 0.875 2 0.75 3",
        "train/loss 0.3333 3 0.3333 3",
        "3 rounds in 4.5 s, 1.5 s per round",
        "up 4.5 MB, down 9.0 MB",
        "/runs/one",
    ]


def test_summary_of_no_round_can_be_shown():
    stream = io.StringIO()
    ProgressDisplay(stream=stream).show(RunSummary().render())
    assert stream.getvalue().startswith("0 rounds in 0 s")
