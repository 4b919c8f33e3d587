"""What a report says."""

from pathlib import Path

import pytest
from run_folders import PROXIMAL, config_of, make_comparison, make_run

from lfl.report.content import Report, curves_frame
from lfl.report.groups import compare
from lfl.report.styles import DRAWN, style_of


def report_of(path: Path, targets: tuple[str, ...] = ()) -> Report:
    return Report.of(compare([path]), [], targets, "round", "")


def test_the_head_says_what_was_compared_and_what_is_shared(tmp_path: Path) -> None:
    report = report_of(make_comparison(tmp_path), ("val_acc=0.7",))
    assert report.title == "FedAvg · Proximal"
    assert report.sentence == "4 runs in 2 groups, which differ in callbacks; 2 seeds each."
    assert ("lr", "0.1") in report.shared
    assert ("max_rounds", "4") in report.shared
    assert report.metrics == ["val_acc", "train/loss"]
    assert report.axes == ["round", "mb", "mb_up", "mb_down", "sim", "seconds"]
    assert len(report.explanations) == 3
    assert "val_acc is of the test set" in report.explanations[0]


def test_a_target_that_nobody_reached_is_remarked_on(tmp_path: Path) -> None:
    """As one in percent of a share."""
    report = report_of(make_comparison(tmp_path), ("val_acc=80", "val_acc=0.1", "train/loss=0.0001"))
    best = max(run.metrics["val_acc"].max() for run in report.comparison.runs)
    least = min(run.metrics["train/loss"].min() for run in report.comparison.runs)
    assert [note for note in report.notes if "has reached" in note] == [
        f"No run has reached val_acc ≥ 80; the closest came to {best:.4g}.",
        f"No run has reached train/loss ≤ 0.0001; the closest came to {least:.4g}.",
    ]


@pytest.mark.parametrize(("weightings", "is_said"), [(("auto", "auto"), True), (("uniform", "uniform"), False)])
def test_a_weighting_that_each_method_chooses_is_said(
    weightings: tuple[str, str], is_said: bool, tmp_path: Path
) -> None:
    for weighting, (name, callbacks) in zip(weightings, (("a", None), ("b", [PROXIMAL])), strict=True):
        config = config_of(callbacks=callbacks)
        config["trainer"]["aggregator"] = {"class_path": "MeanAggregator", "init_args": {"weighting": weighting}}
        make_run(tmp_path / name, config=config)
    assert any("weighting: auto" in line for line in report_of(tmp_path).explanations) == is_said
    assert not any("weighting: auto" in line for line in report_of(tmp_path / "a").explanations)


@pytest.mark.parametrize(
    ("every", "said"),
    [
        ((1, 1), "the first evaluation that reached it; means"),
        ((20, 20), "the first evaluation that reached it, of which there is one every 20 rounds; means"),
        ((1, 20), "the first evaluation that reached it; means"),
    ],
)
def test_how_often_targets_are_looked_for_is_said(every: tuple[int, int], said: str, tmp_path: Path) -> None:
    for rounds, (name, callbacks) in zip(every, (("a", None), ("b", [PROXIMAL])), strict=True):
        config = config_of(callbacks=callbacks)
        config["trainer"]["check_val_every_n_rounds"] = rounds
        make_run(tmp_path / name, config=config)
    assert said in report_of(tmp_path, ("val_acc=0.1",)).explanations[-1]


def test_curves_as_a_table(tmp_path: Path) -> None:
    frame = curves_frame(report_of(make_comparison(tmp_path)))
    last = frame[(frame["metric"] == "val_acc") & (frame["round"] == 4)]
    assert last["mean"].round(6).tolist() == [0.5, 0.85]
    assert last[["low", "high", "mb", "runs"]].to_numpy().tolist() == [[0.4, 0.6, 12.0, 2], [0.8, 0.9, 24.0, 2]]


def test_of_many_groups_the_best_are_drawn_and_get_the_first_styles(tmp_path: Path) -> None:
    for number in range(15):
        make_run(tmp_path / f"run_{number}", (0.01 * number,) * 4, config_of(lr=0.01 * (number + 1)))
    report = report_of(tmp_path)
    assert report.drawn == [f"lr {0.01 * (number + 1):g}" for number in range(15 - DRAWN, 15)]
    assert report.styles[report.drawn[0]] == style_of(0)
    assert len(set(report.styles.values())) == 15
    assert report.title == "15 groups by lr"
    assert report.selection == "Drawn are the best 12 of 15 groups."


def test_runs_without_the_metric_and_unfinished_ones_are_told(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    make_run(tmp_path / "fedavg" / "run_002", (None, None, None, None), config_of(seed=2))
    make_run(tmp_path / "fedavg" / "run_003", (0.1, 0.2), config_of(seed=3))
    report = report_of(tmp_path)
    assert report.notes == ["fedavg/run_003 is unfinished: round 2 of 4.", "fedavg/run_002 did not log val_acc."]
    make_run(tmp_path / "fedavg" / "run_004", (None, None), config_of(seed=4))
    assert report_of(tmp_path).notes[-1] == "fedavg/run_004 has not logged so far: val_acc."
    assert ("fedavg/run_003", "FedAvg", "3/0", "2 of 4 rounds, unfinished") in report.run_rows
    assert "1 unfinished run not counted" in report.explanations[0]


def test_damaged_runs_are_told(tmp_path: Path) -> None:
    metrics = make_run(make_comparison(tmp_path) / "fedavg" / "run_002", config=config_of(seed=2)) / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    report = report_of(tmp_path)
    assert ("fedavg/run_002", "FedAvg", "2/0", "2 of 4 rounds, damaged") in report.run_rows
    assert "1 damaged run not counted" in report.explanations[0]
