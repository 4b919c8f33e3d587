"""Results belong to settings, and are read as they were written."""

import json
import math
from pathlib import Path

import pytest
from inline_pool import InlinePool

from tools import CONFIGS
from tools.papers import experiments

INF = math.inf


def test_a_result_belongs_to_its_settings_and_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("one: 1\n")
    run = experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 1),))
    name = run.name(tmp_path)
    others = [
        experiments.Run("a.yaml", 6, 0, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 1, ("loss",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("acc",), (("x", 1),)),
        experiments.Run("a.yaml", 5, 0, ("loss",), (("x", 2),)),
    ]
    assert len({name, *(other.name(tmp_path) for other in others)}) == 5
    (tmp_path / "a.yaml").write_text("one: 2\n")
    assert run.name(tmp_path) != name


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = experiments.Run("a.yaml", 5, 0, ("loss",))
    outcome = experiments.Outcome(4, 1.5, "not finite", {"loss": {2: 0.1 + 0.2, 4: INF}})
    outcome.write(tmp_path / "a.json", run)
    assert experiments.Outcome.read(tmp_path / "a.json") == outcome
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["seed_everything"] == 0


def test_runs_are_made_in_processes_and_a_failed_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is that of `lfl sweep`, here without its processes; what is there is not made again."""
    monkeypatch.setattr(experiments, "WorkerPool", InlinePool)
    monkeypatch.setattr(experiments, "make", made_up)
    (tmp_path / "a.yaml").write_text("one: 1\n")
    runs = [experiments.Run("a.yaml", rounds, 0, ("loss",)) for rounds in (5, 6)]
    told: list[str] = []
    laboratory = experiments.Laboratory(tmp_path, tmp_path / "out", jobs=2, tell=told.append)
    assert [outcome.last_round for outcome in laboratory.outcomes([*runs, runs[0]]).values()] == [5, 6]
    assert told == ["[1/2] a seed=0: 5 rounds, 0 s", "[2/2] a seed=0: 6 rounds, 0 s"]
    with pytest.raises(RuntimeError, match="a seed=1: ValueError: no such seed"):
        laboratory.outcomes([*runs, experiments.Run("a.yaml", 5, 1, ("loss",))])
    laboratory.close()
    assert len(told) == 2


def made_up(run: experiments.Run, configs: Path, path: Path) -> experiments.Outcome:
    if run.seed:
        raise ValueError("no such seed")
    return experiments.Outcome(run.rounds, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_processes_make_runs(tmp_path: Path) -> None:
    small = (("trainer.callbacks", "null"), ("trainer.system", "null"))
    runs = [experiments.Run("robust_regression_fedavg.yaml", 5, seed, ("val_loss",), small) for seed in (0, 1)]
    laboratory = experiments.Laboratory(CONFIGS / "problems", tmp_path, jobs=2, tell=lambda said: None)
    outcomes = laboratory.outcomes(runs)
    laboratory.close()
    assert [outcome.last_round for outcome in outcomes.values()] == [5, 5]
