import errno
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lfl.loggers import CSVLogger, read_rows


def log(logger: CSVLogger, first: int, last: int) -> None:
    """Rounds whose columns appear one after the other: loss in 1, val_acc in 3 and 6, refused in 5."""
    for number in range(first, last + 1):
        metrics = {"train/loss": 1 / number, "time/round": 0.1 * number}
        if number % 3 == 0:
            metrics["val_acc"] = number / 7
        if number == 5:
            metrics["refused"] = 1
        logger.log_metrics(metrics, step=number)


def raiser(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def text(folder: Path, name: str = "metrics.csv") -> str:
    return (folder / name).read_bytes().decode()


def test_metric_that_appears_later_adds_a_column(tmp_path):
    log(CSVLogger(tmp_path), 1, 5)
    assert text(tmp_path) == (
        "round,train/loss,val_acc,refused\n"
        "1,1.0,,\n"
        "2,0.5,,\n"
        "3,0.3333333333333333,0.42857142857142855,\n"
        "4,0.25,,\n"
        "5,0.2,,1\n"
    )
    assert sorted(os.listdir(tmp_path)) == ["metrics.csv", "timing.csv"]


def test_wall_clock_metrics_go_to_a_file_of_their_own(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"time/round": 0.5}, step=1)
    logger.log_metrics({"loss": 2.0}, step=1)
    logger.log_metrics({"time/round": 0.25, "sim/time": 3.0}, step=2)
    assert text(tmp_path, "timing.csv") == "round,time/round\n1,0.5\n2,0.25\n"
    assert text(tmp_path) == "round,loss,sim/time\n1,2.0,\n2,,3.0\n"


def test_every_row_is_on_the_disk_before_the_logger_is_closed(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"loss": 2.0}, step=1)
    assert text(tmp_path) == "round,loss\n1,2.0\n"
    logger.log_metrics({"loss": 1.0}, step=2)
    assert text(tmp_path) == "round,loss\n1,2.0\n2,1.0\n"


def test_values_are_read_back_exactly(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 5e-324, "c": -math.inf, "d": 2**60 + 1, "e": 1e300}
    CSVLogger(tmp_path).log_metrics(values, step=7)
    assert list(read_rows(tmp_path / "metrics.csv")) == [(7, values)]


def test_numbers_of_numpy_and_torch_are_written_as_numbers(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": np.float32(0.5), "b": np.float64(0.25), "c": torch.tensor(3), "d": math.nan}, step=1)
    assert text(tmp_path) == "round,a,b,c,d\n1,0.5,0.25,3.0,nan\n"


def test_key_with_a_comma_is_quoted_and_read_back(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a,b": 1.0}, step=1)
    logger.log_metrics({"a,b": 2.0, "c": 3.0}, step=2)
    assert text(tmp_path) == 'round,"a,b",c\n1,1.0,\n2,2.0,3.0\n'
    assert list(read_rows(tmp_path / "metrics.csv")) == [(1, {"a,b": 1.0}), (2, {"a,b": 2.0, "c": 3.0})]


def test_a_row_without_its_round_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`step=None` for the metrics \['loss'\]; give the round"):
        CSVLogger(tmp_path).log_metrics({"loss": 1.0})


@pytest.mark.parametrize("last_round", [0, 1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("torn", ["", "8,0.1", "8"])
def test_resumed_files_equal_those_of_the_unbroken_run(tmp_path, last_round, torn):
    """The killed run got to round 7 and half of 8; columns that came after the checkpoint must move to their place."""
    log(CSVLogger(tmp_path / "unbroken"), 1, 9)
    log(CSVLogger(tmp_path / "killed"), 1, 7)
    for name in ("metrics.csv", "timing.csv"):
        with (tmp_path / "killed" / name).open("a") as file:
            file.write(torn)
    resumed = CSVLogger(tmp_path / "resumed")
    resumed.continue_from(tmp_path / "killed", last_round)
    log(resumed, last_round + 1, 9)
    for name in ("metrics.csv", "timing.csv"):
        assert text(tmp_path / "resumed", name) == text(tmp_path / "unbroken", name)


def test_resuming_in_the_same_folder_drops_the_later_rounds(tmp_path):
    log(CSVLogger(tmp_path / "unbroken"), 1, 9)
    log(CSVLogger(tmp_path / "run"), 1, 7)
    resumed = CSVLogger(tmp_path / "run")
    resumed.continue_from(tmp_path / "run", 4)
    log(resumed, 5, 9)
    assert text(tmp_path / "run") == text(tmp_path / "unbroken")


def test_file_of_an_earlier_logger_is_continued_without_its_torn_line(tmp_path):
    log(CSVLogger(tmp_path / "unbroken"), 1, 7)
    first = CSVLogger(tmp_path / "run")
    log(first, 1, 5)
    first.finalize("success")
    log(first, 6, 6)
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("7,0.1")
    log(CSVLogger(tmp_path / "run"), 7, 7)
    assert text(tmp_path / "run") == text(tmp_path / "unbroken")


def test_continue_from_never_replaces_rows(tmp_path):
    log(CSVLogger(tmp_path / "old"), 1, 3)
    late = CSVLogger(tmp_path / "late")
    log(late, 1, 1)
    with pytest.raises(RuntimeError, match="must come before the first row"):
        late.continue_from(tmp_path / "old", 2)
    with pytest.raises(FileExistsError, match="has rows already"):
        CSVLogger(tmp_path / "late").continue_from(tmp_path / "old", 2)
    assert text(tmp_path / "late") == "round,train/loss\n1,1.0\n"


def test_missing_file_of_the_resumed_run_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"has no metrics.csv: that of this run starts after round 4"):
        CSVLogger(tmp_path / "new").continue_from(tmp_path / "old", 4)


def filled(monkeypatch, after):
    """A disk that takes so many bytes more of whatever is written by ``os.write``."""
    write, room = os.write, [after]

    def limited(file, data):
        taken = min(room[0], len(data))
        room[0] -= taken
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:taken])

    monkeypatch.setattr(os, "write", limited)
    return room


@pytest.mark.parametrize("after", [0, 1, 5, 7, 8, 12])
def test_a_full_disk_loses_no_row(tmp_path, monkeypatch, after):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 0.5, "time/b": 1.0}, step=1)
    whole = (tmp_path / "metrics.csv").read_bytes()
    room = filled(monkeypatch, after)
    with pytest.raises(OSError, match=r"^\[Errno \d+\] Cannot write .*\.csv: No space left on device\. .* choose anot"):
        logger.log_metrics({"a": 0.25, "time/b": 2.0}, step=2)
    assert (tmp_path / "metrics.csv").read_bytes().startswith(whole)
    assert [step for step, _ in read_rows(tmp_path / "timing.csv")] == [1]
    state = logger.state_dict()
    room[0] = 10**6
    resumed = CSVLogger(tmp_path / "resumed")
    resumed.load_state_dict(state)
    resumed.continue_from(tmp_path, 2)
    for again in (logger, resumed):
        again.log_metrics({"a": 0.125, "time/b": 3.0}, step=3)
        rows = [list(read_rows(again.directory / name)) for name in ("metrics.csv", "timing.csv")]
        assert rows[0] == [(1, {"a": 0.5}), (2, {"a": 0.25}), (3, {"a": 0.125})]
        assert rows[1] == [(1, {"time/b": 1.0}), (2, {"time/b": 2.0}), (3, {"time/b": 3.0})]
    assert logger.state_dict() == {}


def test_short_writes_are_completed(tmp_path, monkeypatch):
    logger, write = CSVLogger(tmp_path), os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:2]))
    logger.log_metrics({"loss": 0.123456789}, step=12)
    assert (tmp_path / "metrics.csv").read_text() == "round,loss\n12,0.123456789\n"


def test_a_failed_rewrite_leaves_the_file_and_no_rest(tmp_path, monkeypatch):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 0.5}, step=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", raiser(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match=r"Cannot write .*metrics\.csv"):
            logger.log_metrics({"a": 0.25, "b": 1.0}, step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
    logger.log_metrics({"a": 0.125, "b": 2.0}, step=3)
    assert (tmp_path / "metrics.csv").read_text() == "round,a,b\n1,0.5,\n2,0.25,1.0\n3,0.125,2.0\n"


def test_settings_are_written_unless_the_command_line_has(tmp_path: Path) -> None:
    settings = {"trainer": {"max_rounds": 3}, "model": Path("net.py"), "rates": (0.1, 0.2)}
    CSVLogger(tmp_path / "python").log_hyperparams(settings)
    written = yaml.safe_load((tmp_path / "python" / "hparams.yaml").read_text())
    assert written["trainer"] == {"max_rounds": 3}
    assert written["rates"] == [0.1, 0.2]
    assert [path.name for path in (tmp_path / "python").iterdir()] == ["hparams.yaml"]
    (tmp_path / "config.yaml").write_text("trainer: {}")
    CSVLogger(tmp_path).log_hyperparams(settings)
    assert not (tmp_path / "hparams.yaml").exists()
