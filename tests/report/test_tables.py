"""The tables' numbers are those that one computes by hand from metrics.csv."""

import csv
import math
import statistics
from pathlib import Path

import pytest
from run_folders import config_of, make_comparison, make_run

from lfl.report.groups import compare
from lfl.report.metrics import Target
from lfl.report.tables import Cell, markdown, payloads, phases, quantities_of, summary_of, told

REACHED = Target("val_acc", 0.7, 1)


def by_hand(path: Path) -> dict[str, float]:
    """From the files, with nothing of the package."""
    with (path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (path / "timing.csv").open() as file:
        seconds = [float(row["time/round_s"]) for row in csv.DictReader(file)]
    values = [float(row["val_acc"]) for row in rows if row["val_acc"]]
    hit = next((row for row in rows if row["val_acc"] and float(row["val_acc"]) >= REACHED.value), None)
    found = {"final": values[-1], "best": max(values), "last_tenth": values[-1], "sim": float(rows[-1]["sim/time"])}
    found |= {"mb_up": float(rows[-1]["comm/total_up_bytes"]) / 1e6, "seconds": sum(seconds)}
    if hit is not None:
        sent = float(hit["comm/total_up_bytes"]) + float(hit["comm/total_down_bytes"])
        found |= {"round_to_val_acc_0.7": int(hit["round"]), "mb_to_val_acc_0.7": sent / 1e6}
        found |= {"seconds_to_val_acc_0.7": sum(seconds[: int(hit["round"])])}
    return found


def test_means_and_deviations_are_those_by_hand(tmp_path: Path) -> None:
    comparison = compare([make_comparison(tmp_path)])
    table = summary_of(comparison.groups, quantities_of("val_acc", [REACHED])).frame(comparison.names)
    for folder, row in zip(("fedavg", "fedprox"), table.to_dict("records"), strict=True):
        runs = [by_hand(path) for path in sorted((tmp_path / folder).iterdir())]
        for name in runs[0]:
            values = [run[name] for run in runs]
            assert row[f"{name}_mean"] == pytest.approx(statistics.mean(values)), name
            assert row[f"{name}_std"] == pytest.approx(statistics.stdev(values)), name
            assert row[f"{name}_n"] == 2
    assert table["callbacks"].tolist() == ["FedAvg", "lfl.callbacks.Proximal"]
    assert table["round_to_val_acc_0.7_mean"].tolist()[1] == 3


def test_a_target_that_is_never_reached(tmp_path: Path) -> None:
    comparison = compare([make_comparison(tmp_path)])
    target = Target("val_acc", 0.55, 1)
    summary = summary_of(comparison.groups, quantities_of("val_acc", [target]))
    column = [quantity.name for quantity in summary.quantities].index("round_to_val_acc_0.55")
    fedavg, fedprox = (row[column] for row in summary.cells)
    assert fedavg.text(1) == "4.0 (1 of 2 never)"  # the other one ended with 0.4, and had 0.5
    assert fedprox.text(1) == "3.0 ± 0"
    assert summary.best(column) == {1}
    never = summary_of(comparison.groups, quantities_of("val_acc", [Target("val_acc", 0.99, 1)])).cells[0][column]
    assert never.text(1) == "(2 of 2 never)"
    assert math.isnan(never.mean)


def test_unfinished_runs_are_not_in_the_means(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    make_run(tmp_path / "fedavg" / "run_002", (0.1, 0.0), config_of(seed=2))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", []))
    assert summary.cells[0][0].mean == pytest.approx(0.5)
    assert summary.frame({})["runs"].tolist() == [3, 2]
    assert summary.frame({})["counted"].tolist() == [2, 2]


def test_runs_that_diverged_are_counted_beside_the_mean(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2, 0.3, math.nan), config_of(seed=0))
    make_run(tmp_path / "b", (0.1, 0.2, 0.3, 0.4), config_of(seed=1))
    cell = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", [])).cells[0][0]
    assert cell.text(2) == "0.40 (1 of 2 not finite)"


def test_only_means_of_all_runs_of_a_group_are_the_best(tmp_path: Path) -> None:
    for name, lr, ends in (("a", 0.1, (0.9, 0.1)), ("b", 0.2, (0.6, 0.6)), ("c", 0.3, (0.99, None))):
        for seed, end in enumerate(ends):
            first = None if end is None else 0.0
            make_run(tmp_path / name / str(seed), (first, None, None, end), config_of(seed, lr))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", [Target("val_acc", 0.5, 1)]))
    rounds = [quantity.name for quantity in summary.quantities].index("round_to_val_acc_0.5")
    assert [row[0].text(2) for row in summary.cells] == ["0.50 ± 0.57", "0.60 ± 0", "0.99 (1 of 2 logged it)"]
    assert [row[rounds].text(0) for row in summary.cells] == ["4 (1 of 2 never)", "4 ± 0", "4 (1 of 2 logged it)"]
    assert [summary.best(column) for column in (0, rounds)] == [{1}, {1}]
    unequal = summary_of(summary.groups, quantities_of("val_acc", [Target("val_acc", 0.8, 1)]))
    assert unequal.best(rounds) == set()  # some runs of each never reached it


def test_damaged_runs_are_never_the_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2, 0.3, 0.4), config_of(lr=0.1))
    metrics = make_run(tmp_path / "b", (0.8, 0.9, 0.1, 0.1), config_of(lr=0.2)) / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", []))
    assert [row[0].mean for row in summary.cells] == [0.4, 0.9]
    assert summary.best(0) == set()  # nothing is left to compare with


def test_unfinished_runs_are_never_the_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2, 0.3, 0.4), config_of(lr=0.1))
    make_run(tmp_path / "b", (0.8, 0.9), config_of(lr=0.2))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", []))
    assert [row[0].mean for row in summary.cells] == [0.4, 0.9]
    assert summary.best(0) == set()
    make_run(tmp_path / "b1", (0.8, 0.9, 0.7, 0.5), config_of(1, lr=0.2))  # of that group the finished one is read
    make_run(tmp_path / "c", (0.1, 0.2, 0.3, 0.3), config_of(lr=0.3))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", []))
    assert [row[0].mean for row in summary.cells] == [0.4, 0.5, 0.3]
    assert summary.best(0) == {0}


def test_what_one_group_alone_has_logged_is_not_the_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2, 0.3, 0.4), config_of(lr=0.1))
    make_run(tmp_path / "b", (None, None, None, None), config_of(lr=0.2))
    summary = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", []))
    assert summary.best(0) == set()


def test_columns_that_no_run_has_are_left_out(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "timing.csv").write_text("round,time/train_s\n1,0.3\n")
    quantities = summary_of(compare([tmp_path]).groups, quantities_of("val_acc", [REACHED])).quantities
    assert "seconds" not in [quantity.name for quantity in quantities]
    assert "sim" in [quantity.name for quantity in quantities]


def test_the_best_of_a_loss_is_the_lowest(tmp_path: Path) -> None:
    summary = summary_of(compare([make_run(tmp_path / "run")]).groups, quantities_of("train/loss", []))
    assert [cell.mean for cell in summary.cells[0][:2]] == [0.25, 0.25]
    assert summary.best(0) == set()  # of one group


def test_payloads_and_phases(tmp_path: Path) -> None:
    groups = compare([make_comparison(tmp_path)]).groups
    assert payloads(groups).to_dict("records") == [
        {"group": "FedAvg", "direction": "up", "payload": "update", "mb": 4.0},
        {"group": "FedAvg", "direction": "down", "payload": "model", "mb": 8.0},
        {"group": "Proximal", "direction": "up", "payload": "update", "mb": 8.0},
        {"group": "Proximal", "direction": "down", "payload": "model", "mb": 16.0},
    ]
    assert phases(groups)["training"].tolist() == pytest.approx([0.3, 0.3])
    assert phases(groups)["rest"].tolist() == pytest.approx([0.2, 0.2])


def test_numbers_as_text() -> None:
    assert told(0.49583, 4) == "0.4958"
    assert told(1e-8, 6) == "1.00e-08"
    assert Cell([2.0, 2.0]).text(1) == "2.0 ± 0"
    assert Cell([]).text(1) == Cell([], runs=2).text(1) == ""
    assert Cell([2.0, math.inf], "never", 3).text(0) == "2 (2 of 3 logged it, 1 of 2 never)"


def test_markdown_keeps_bars_out_of_cells() -> None:
    assert markdown(["a", "b"], [["x|y", "1"]]) == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]
