"""A sweep's folder says what it is, is found again, and is kept from others."""

import csv
import json
from pathlib import Path

import pytest

from lfl.sweep.folder import (
    Sweep,
    SweepError,
    attempts,
    check_same,
    finished_folder,
    last_metrics,
    place_of,
    remove_incomplete,
    write_finished,
    write_json,
    write_results,
)
from lfl.sweep.grid import combine, read_axes


def sweep(*values: str, digest: str = "d") -> Sweep:
    runs = combine(read_axes(["--config", "a.yaml", "--lr", *values]))
    return Sweep(("--lr", *values), tuple(runs), tuple(f"{digest}{run.name}" for run in runs))


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = sweep("0.1", "1e-3", "[1, 2]")
    written.write(tmp_path)
    assert Sweep.read(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match=r"is not the folder of a sweep: .*sweep\.yaml cannot be read"):
        Sweep.read(tmp_path)
    (tmp_path / "sweep.yaml").write_text("method: grid\n")
    with pytest.raises(SweepError, match="was not written by `lfl sweep`"):
        Sweep.read(tmp_path)
    for damaged in (b"runs: [", b"\xff", b"\0" * 8):
        (tmp_path / "sweep.yaml").write_bytes(damaged)
        with pytest.raises(SweepError, match=r"sweep\.yaml is damaged: "):
            Sweep.read(tmp_path)


def test_the_same_sweep_finds_its_folder_and_another_gets_a_new_one(tmp_path: Path) -> None:
    first = place_of(sweep("1", "2"), None, tmp_path / "sweeps")
    sweep("1", "2").write(first)
    (tmp_path / "sweeps" / "sweep_007").mkdir()
    assert first.name == "sweep_000"
    assert place_of(sweep("1", "2"), None, tmp_path / "sweeps") == first
    assert place_of(sweep("1", "3"), None, tmp_path / "sweeps").name == "sweep_008"
    assert place_of(sweep("1", "2", digest="e"), None, tmp_path / "sweeps").name == "sweep_009"


def refusal(of: Sweep, folder: Path) -> str:
    with pytest.raises(SweepError) as caught:
        check_same(of, folder)
    return str(caught.value)


def test_what_the_command_has_changed_is_named(tmp_path: Path) -> None:
    def of(*words: str) -> Sweep:
        runs = combine(read_axes([*words, "--lr", "1,2"]))
        return Sweep(words, tuple(runs), tuple(" ".join(run.arguments) for run in runs))

    of("--config", "a.yaml", "--rounds", "3", "--x+=A", "--x+=B").write(tmp_path)
    message = refusal(of("--config", "a.yaml", "--rounds", "5", "--x+=A", "--x+=C", "--seed=1"), tmp_path)
    assert message.startswith(f"The settings of 'lr=1' are not those that {tmp_path} was begun with: ")
    assert (
        "`--rounds` was 3 and is now 5, `--x+` was A B and is now A C, `--seed` was not given and is now 1." in message
    )
    message = refusal(of("--rounds", "3", "--x+=B", "--config", "a.yaml", "--x+=B"), tmp_path)
    assert "with: `--x+` was A B and is now B B." in message
    assert "they stand in another order" in refusal(of("--rounds=3", "--config=a.yaml", "--x+=A", "--x+=B"), tmp_path)


def test_a_named_folder_takes_the_same_runs_or_more(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    sweep("1", "2").write(place_of(sweep("1", "2"), folder, tmp_path))
    assert place_of(sweep("1", "2", "3"), folder, tmp_path) == folder
    with pytest.raises(SweepError, match="holds another sweep, with a run 'lr=2' that this one has not"):
        place_of(sweep("1", "3"), folder, tmp_path)
    with pytest.raises(SweepError, match=r"The settings of 'lr=1' are not those that .* was begun with"):
        place_of(sweep("1", "2", digest="e"), folder, tmp_path)
    assert refusal(sweep("1", "2", digest="e"), folder).endswith(
        "begun with: a config has changed since, or a default. Put it back, or take another `--output`."
    )
    with pytest.raises(SweepError, match="holds something else than a sweep"):
        place_of(sweep("1", "2"), tmp_path / "a", tmp_path)


def test_last_values_are_those_of_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round,loss,acc\n1,0.5,\n2,0.25,0.75  \n3,0.125,   \n4,0.06")
    assert last_metrics(tmp_path) == {"round": 3, "loss": 0.125, "acc": 0.75}
    assert last_metrics(tmp_path / "nowhere") == {}


def test_a_run_is_finished_if_its_results_are_whole(tmp_path: Path) -> None:
    attempt = tmp_path / "run_000"
    attempt.mkdir()
    (attempt / "metrics.csv").write_text("round,a\n4,1.0\n5,1.0\n")
    write_finished(attempt)
    assert json.loads((tmp_path / "finished.json").read_text()) == {"folder": "run_000", "round": 5}
    assert finished_folder(tmp_path) == attempt
    (attempt / "metrics.csv").write_text("round,a\n4,1.0\n5,1.")
    assert finished_folder(tmp_path) is None
    (attempt / "metrics.csv").unlink()
    assert finished_folder(tmp_path) is None
    attempt.rmdir()
    assert finished_folder(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\0\0", '{"folder": "run_000", "round": null}'])
def test_a_damaged_record_is_that_of_an_unfinished_run_whose_rounds_are_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "run_000").mkdir()
    (tmp_path / "finished.json").write_text(text)
    assert finished_folder(tmp_path) is None
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run_000"]


@pytest.mark.parametrize("record", ["", '{"folder": "run_000", "round": 2}'])
@pytest.mark.parametrize("left", [(1, 2), (1, 3), (3,)])
def test_results_that_lack_rounds_of_their_times_are_not_finished_and_are_removed(
    tmp_path: Path, left: tuple[int, ...], record: str
) -> None:
    for name, rounds in (("run_000", left), ("run_001", (1, 2, 3))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("round,a\n" + "".join(f"{n},0.5\n" for n in rounds))
        (tmp_path / name / "timing.csv").write_text("round,time/train_s\n1,0.1\n2,0.1\n3,0.1\n")
    (tmp_path / "finished.json").write_text(record)
    assert finished_folder(tmp_path) is None
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run_001"]


def test_only_folders_of_runs_are_removed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("run_000", "run_001"):
        (tmp_path / "x" / name).mkdir(parents=True)
    for name in ("../other", "run_001"):
        write_json(tmp_path / "x" / "finished.json", {"folder": name, "round": 3})
        remove_incomplete(tmp_path / "x")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["run_000"]
    assert (tmp_path / "other").exists()


def test_results_have_a_row_for_every_run(tmp_path: Path) -> None:
    made = sweep("1", "2", "3")
    for name, attempt, text in (("lr=1", "run_000", "round,a\n5,1.0\n"), ("lr=2", "run_001", "round,b\n2,nan\n")):
        (tmp_path / name / attempt).mkdir(parents=True)
        (tmp_path / name / attempt / "metrics.csv").write_text(text)
    (tmp_path / "lr=1" / "run_009").mkdir()
    write_json(tmp_path / "lr=1" / "finished.json", {"folder": "run_000"})
    write_results(tmp_path, made, {"lr=1": "finished", "lr=2": "failed", "lr=3": "waiting"})
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "lr", "state", "folder", "round", "a", "b"]
    assert [list(row.values()) for row in rows] == [
        ["lr=1", "1", "finished", "lr=1/run_000", "5", "1.0", ""],
        ["lr=2", "2", "failed", "lr=2/run_001", "2", "", "nan"],
        ["lr=3", "3", "waiting", "", "", "", ""],
    ]
    assert finished_folder(tmp_path / "lr=2") is None
    assert [path.name for path in attempts(tmp_path / "lr=1")] == ["run_000", "run_009"]
