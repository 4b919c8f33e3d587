"""Runs are grouped by the settings that differ between them."""

from pathlib import Path

import pytest
from run_folders import PROXIMAL, config_of, make_comparison, make_run

from lfl.report.groups import compare
from lfl.report.runs import ReportError


def test_seeds_are_one_group(tmp_path: Path) -> None:
    comparison = compare([make_comparison(tmp_path)])
    assert [(group.label, len(group.runs)) for group in comparison.groups] == [("FedAvg", 2), ("Proximal", 2)]
    assert comparison.names == {"trainer.callbacks": "callbacks"}
    assert comparison.shared["optimizer.lr"] == 0.1
    assert comparison.notes == []


def test_one_group_is_named_by_its_method(tmp_path: Path) -> None:
    make_run(tmp_path / "run_000", config=config_of(callbacks=[PROXIMAL]))
    assert [group.label for group in compare([tmp_path]).groups] == ["Proximal"]


def test_nested_settings_and_lists_of_callbacks_make_groups(tmp_path: Path) -> None:
    stronger = {**PROXIMAL, "init_args": {"mu": 1.0}}
    for number, (lr, callbacks) in enumerate(((0.1, [PROXIMAL]), (0.2, [PROXIMAL]), (0.1, [stronger]))):
        make_run(tmp_path / f"run_{number}", config=config_of(lr=lr, callbacks=callbacks))
    groups = compare([tmp_path]).groups
    assert [group.label for group in groups] == ["mu 0.1, lr 0.1", "mu 0.1, lr 0.2", "mu 1, lr 0.1"]
    assert groups[1].settings == {"trainer.callbacks.Proximal.mu": 0.1, "optimizer.lr": 0.2}


def test_runs_without_numbers_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    make_run(tmp_path / "fedavg" / "run_002", (0.1, 0.2), config_of(seed=2))
    (make_run(tmp_path / "fedavg" / "run_003", config=config_of(seed=3)) / "metrics.csv").unlink()
    (tmp_path / "fedavg" / "run_003" / "timing.csv").unlink()
    (make_run(tmp_path / "fedavg" / "run_004", config=config_of(seed=4)) / "metrics.csv").write_text("round,a\n1,b\n")
    comparison = compare([tmp_path, str(tmp_path / "no*thing")])
    empty, unread, damaged, unfinished = comparison.notes
    assert empty == f"{tmp_path / 'no*thing'} has no runs in it."
    assert unread == "fedavg/run_003 is left out: it has no metrics, as it ended before its first round did."
    assert damaged.startswith("fedavg/run_004 is left out: ")
    assert unfinished == "fedavg/run_002 is unfinished: round 2 of 4."
    assert [len(comparison.groups[0].runs), len(comparison.groups[0].counted)] == [3, 2]


def test_damaged_runs_are_named_and_do_not_count(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    for seed, lines in ((2, 3), (3, 1)):
        metrics = make_run(tmp_path / "fedavg" / f"run_{seed:03d}", config=config_of(seed)) / "metrics.csv"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:lines]))
    comparison = compare([tmp_path])
    assert comparison.notes == [
        "fedavg/run_003 is left out: its metrics.csv is damaged: it has no rounds, and timing.csv ends at round 4.",
        "fedavg/run_002 is damaged: metrics.csv ends at round 2, timing.csv at round 4.",
    ]
    assert [run.seed for run in comparison.groups[0].counted] == ["0", "1/0"]
    alone = compare([tmp_path / "fedavg" / "run_002"]).groups[0]
    assert (len(alone.counted), alone.counted[0].is_finished) == (1, False)


def test_evaluations_and_runs_with_lost_rows_are_named(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    evaluation = make_run(tmp_path / "fedavg" / "run_002", config=config_of(2))
    (evaluation / "metrics.csv").write_text("round,test_acc\n4,0.5\n")
    (evaluation / "timing.csv").unlink()
    for seed, file in ((3, "metrics.csv"), (4, "timing.csv")):
        path = make_run(tmp_path / "fedavg" / f"run_{seed:03d}", config=config_of(seed)) / file
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:2], *lines[3:]]))
    (make_run(tmp_path / "fedavg" / "run_005", config=config_of(5)) / "timing.csv").unlink()
    comparison = compare([tmp_path])
    assert comparison.notes == [
        "1 folder is that of an evaluation or of predictions, and passed over.",
        "fedavg/run_003 is damaged: metrics.csv lacks 1 of the rounds that timing.csv has.",
        "fedavg/run_004 has no seconds in this report: timing.csv lacks 1 of the rounds that metrics.csv has.",
        "fedavg/run_005 has no seconds in this report: timing.csv is not there.",
    ]
    assert [run.seed for run in comparison.groups[0].counted] == ["0", "1/0", "4/0", "5/0"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    timing = make_run(tmp_path / "fedavg" / "run_002", config=config_of(2)) / "timing.csv"
    timing.unlink()
    timing.mkdir()
    assert compare([tmp_path]).notes == [f"fedavg/run_002 is left out: {timing}: Is a directory."]


def test_where_nothing_is_finished_everything_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2), config_of(seed=0))
    make_run(tmp_path / "b", (0.1,), config_of(seed=1))
    assert len(compare([tmp_path]).groups[0].counted) == 2


def test_no_numbers_at_all_is_an_error(tmp_path: Path) -> None:
    (make_run(tmp_path / "run_000") / "metrics.csv").write_text("round,a\n")
    (tmp_path / "run_000" / "timing.csv").write_text("round,time/train_s\n")
    with pytest.raises(ReportError, match=r"^none of 1 runs has numbers\. run_000 is left out: it has no metrics"):
        compare([tmp_path])


def test_a_run_that_is_repeated_or_resumed_counts_once(tmp_path: Path) -> None:
    make_run(tmp_path / "run_000", (0.1, 0.2))  # killed
    make_run(tmp_path / "run_001", config={**config_of(), "ckpt_path": "last"})
    make_run(tmp_path / "run_002", config=config_of())
    make_run(tmp_path / "run_003", (0.1,) * 8, {**config_of(max_rounds=8), "ckpt_path": "last"})
    comparison = compare([tmp_path])
    assert [run.path.name for run in comparison.runs] == ["run_003"]
    assert len(comparison.notes) == 3
    assert comparison.notes[0] == "run_000 is left out: run_003 has the same settings and seed."


def test_a_longer_run_from_the_start_is_another_group(tmp_path: Path) -> None:
    make_run(tmp_path / "run_000")
    make_run(tmp_path / "run_001", (0.1,) * 8, config_of(max_rounds=8))
    assert [group.label for group in compare([tmp_path]).groups] == ["max_rounds 4", "max_rounds 8"]


def test_groups_are_renamed_in_order(tmp_path: Path) -> None:
    comparison = compare([make_comparison(tmp_path)])
    assert [group.label for group in comparison.renamed(["ours", "theirs"]).groups] == ["ours", "theirs"]
    for names in (["one"], ["same", "same"]):
        with pytest.raises(ReportError, match=r"for 2 groups: give each its own, in this order: FedAvg; Proximal\."):
            comparison.renamed(names)
