"""Run folders are found at any depth, and read as they were written."""

import math
from pathlib import Path

import pytest
from cli_world import World
from run_folders import config_of, make_comparison, make_run

from lfl.loggers import CSVLogger
from lfl.loggers.csv import read_rows
from lfl.report.runs import Found, ReportError, find, names_of, read, read_metrics, total


def test_runs_are_found_below_folders_and_by_patterns(tmp_path: Path) -> None:
    make_comparison(tmp_path / "sweep")
    make_run(tmp_path / "sweep" / "fedavg" / "run_10")
    (tmp_path / "sweep" / "config.yaml").write_text("trainer:\n")  # of the sweep, which is no run
    found = find([tmp_path])
    runs = found.runs
    assert names_of(runs) == ["fedavg/run_000", "fedavg/run_001", "fedavg/run_10", "fedprox/run_000", "fedprox/run_001"]
    assert (found.empty, found.evaluations) == ([], [])
    assert find([str(tmp_path / "sw*" / "fedp*")]).runs == runs[3:]
    assert find([runs[1], runs[1], tmp_path / "nothing"]) == Found([runs[1]], [str(tmp_path / "nothing")], [])


def test_runs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("lr=0.1", "lr=0.05", "lr=1", "lr=10"):
        make_run(tmp_path / name)
    assert names_of(find([tmp_path]).runs) == ["lr=0.05", "lr=0.1", "lr=1", "lr=10"]


def test_a_run_that_ended_before_its_first_round_is_one(tmp_path: Path) -> None:
    (tmp_path / "run_000" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run_000" / "config.yaml").write_text("seed_everything: 0\ntrainer:\n  max_rounds: 3\n")
    runs = find([tmp_path]).runs
    assert [read(run).rounds for run in runs] == [0]
    assert not read(runs[0]).is_finished


def test_what_other_commands_leave_is_no_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run_000")
    (make_run(tmp_path / "run_001") / "timing.csv").unlink()
    (tmp_path / "run_001" / "metrics.csv").write_text("round,test_loss,test_acc\n4,1.5,0.4\n")  # as of `lfl test`
    (tmp_path / "run_002").mkdir()
    (tmp_path / "run_002" / "config.yaml").write_text("trainer:\n")
    (tmp_path / "run_002" / "predictions.pt").touch()
    assert find([tmp_path]) == Found([run], [], [tmp_path / "run_001", tmp_path / "run_002"])


def test_what_lfl_test_writes_is_told_from_a_run_whose_times_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    for command in (["fit"], ["test", "--ckpt_path=last"], ["validate", "--ckpt_path=last"]):
        assert world.lfl(*command, "--config", "base.yaml")[0] == 0
    trained, tested, validated = (tmp_path / "runs" / f"run_{number:03d}" for number in range(3))
    (trained / "timing.csv").unlink()
    assert find([tmp_path]) == Found([trained], [], [tested, validated])


def test_rounds_that_are_lost_in_the_middle_make_a_run_damaged(tmp_path: Path) -> None:
    metrics = make_run(tmp_path / "run") / "metrics.csv"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:2], *lines[4:]]))
    run = read(tmp_path / "run")
    assert (run.rounds, run.timed, run.lost, run.state) == (4, 4, 2, "damaged")


@pytest.mark.parametrize(
    ("kept", "accuracies", "is_timed"),
    [
        ([1, 2, 3, 4], (0.1, 0.2, 0.3, 0.4), True),
        ([1, 2], (0.1, 0.2, 0.3, 0.4), False),
        ([1, 2, 4], (0.1, 0.2, 0.3, 0.4), False),
        ([], (0.1, 0.2, 0.3, 0.4), False),
        ([1, 2], (0.1, 0.2, 0.3), True),  # the run goes on, and may be writing its last row
        ([1], (0.1, 0.2, 0.3), False),
    ],
)
def test_seconds_are_known_where_every_round_has_its_time(
    tmp_path: Path, kept: list[int], accuracies: tuple[float, ...], is_timed: bool
) -> None:
    timing = make_run(tmp_path / "run", accuracies) / "timing.csv"
    lines = timing.read_text().splitlines(keepends=True)
    timing.write_text("".join(lines[number] for number in [0, *kept]))
    run = read(tmp_path / "run")
    assert (run.is_damaged, run.is_timed, "seconds" in run.axes) == (False, is_timed, is_timed)


def test_a_run_that_logs_every_second_round_has_all_its_rounds(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    for file in ("metrics.csv", "timing.csv"):
        head, *rows = (path / file).read_text().splitlines(keepends=True)
        (path / file).write_text("".join([head, *rows[1::2]]))
    run = read(path)
    assert (run.state, run.is_timed, run.axes["seconds"].tolist()) == ("finished", True, [1.0, 2.0])


def test_no_runs_at_all_is_an_error_that_names_the_paths(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"^no runs in '.*', 'nope' \(does not exist\): a run's folder.*metrics\.csv"):
        find([tmp_path, "nope"])


def test_metrics_are_read_as_the_logger_reads_them(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    rows = [{"a": 0.1, "b, c": 1e-300}, {"a": math.nan}, {"a": math.inf, "b, c": 1 / 3, "late": 3.0}]
    for number, row in enumerate(rows, 1):
        logger.log_metrics(row, step=2 * number)
    logger.finalize("success")
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("8,0.5,0.")  # a run that is writing, or was killed
    found = read_metrics(tmp_path / "metrics.csv")
    assert found["a"].index.tolist() == [2, 4, 6]
    assert str(found["a"].tolist()) == "[0.1, nan, inf]"
    assert {n: s.to_dict() for n, s in found.items() if n != "a"} == {"b, c": {2: 1e-300, 6: 1 / 3}, "late": {6: 3.0}}
    for number, metrics in read_rows(tmp_path / "metrics.csv"):
        assert str(metrics) == str({name: float(s[number]) for name, s in found.items() if number in s.index})


def test_a_row_that_was_written_over_ends_in_spaces(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,a,b\n1,0.5,   \n2,0.25,1.0  \n")
    found = read_metrics(tmp_path / "metrics.csv")
    assert [found["a"].to_dict(), found["b"].to_dict()] == [{1: 0.5, 2: 0.25}, {2: 1.0}]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,a\n2,1.0\n1,2.0\n")
    with pytest.raises(ReportError, match="its rounds are not in order"):
        read_metrics(tmp_path / "metrics.csv")
    (tmp_path / "metrics.csv").write_text("round,a\n1,x\n")
    with pytest.raises(ReportError, match=r"metrics\.csv is damaged, or no file of `lfl fit`"):
        read_metrics(tmp_path / "metrics.csv")
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(ReportError, match=r"config\.yaml is no YAML"):
        read(tmp_path)


def test_axes_are_sums_since_the_start(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", megabytes=3.0))
    assert run.axes["mb_up"].tolist() == [3.0, 6.0, 9.0, 12.0]
    assert run.axes["mb"].tolist() == [9.0, 18.0, 27.0, 36.0]
    assert run.axes["seconds"].tolist() == [0.5, 1.0, 1.5, 2.0]
    at = run.at("sim", [1, 3])
    assert at is not None
    assert at.tolist() == [2.0, 6.0]
    assert run.at("other", [1]) is None


def test_a_logged_round_stands_for_those_since_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "timing.csv").write_text("round,time/round_s\n5,1.0\n10,2.0\n")
    assert total(read_metrics(tmp_path / "timing.csv")["time/round_s"]).tolist() == [5.0, 15.0]


def test_runs_with_early_stopping_are_finished_where_they_end(tmp_path: Path) -> None:
    stopping = [{"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_acc"}}]
    runs = [
        read(make_run(tmp_path / name, config=config_of(callbacks=callbacks, max_rounds=rounds)))
        for name, callbacks, rounds in (("a", None, 4), ("b", None, 5), ("c", stopping, 5))
    ]
    assert [run.state for run in runs] == ["finished", "unfinished", "finished"]


def test_a_run_whose_metrics_end_before_its_times_is_damaged(tmp_path: Path) -> None:
    stopping = [{"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_acc"}}]
    for name, callbacks in (("a", None), ("b", stopping)):
        metrics = make_run(tmp_path / name, config=config_of(callbacks=callbacks)) / "metrics.csv"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]) + "3,0.2,")
        run = read(tmp_path / name)
        assert (run.rounds, run.timed, run.state, run.is_finished) == (2, 4, "damaged", False)
    (make_run(tmp_path / "c") / "timing.csv").write_text("round,time/train_s\n1,0.3\n")
    assert not read(tmp_path / "c").is_damaged


def test_a_run_without_a_config_is_told_by_its_folder(tmp_path: Path) -> None:
    path = make_run(tmp_path / "mine")
    (path / "config.yaml").unlink()
    assert read(path).settings == {"folder": "mine"}
    assert read(path).is_finished


def test_seeds_are_no_settings(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run", config=config_of(seed=7)))
    assert (run.seed, dict(run.seeds)) == ("7/0", {"seed_everything": 7, "data.seed": 0})
    assert not [key for key in run.settings if "seed" in key]
