"""Memory and time of local steps on made-up results."""

from collections.abc import Iterable
from typing import Any

import pytest

from tools.papers import ssf_steps
from tools.papers.experiments import Outcome, Run
from tools.papers.kept import Numbers
from tools.papers.step_observers import MILLISECONDS, PARTS, PEAK
from tools.papers.study import mlp


def outcome(**series: list[float]) -> Any:
    return Outcome(9, 0.0, "", {name: dict(enumerate(values, 1)) for name, values in series.items()})


def memory(*bytes_of_parts: float) -> Any:
    names = (*(f"memory/{part}" for part in PARTS), PEAK)
    return outcome(**{name: [value - 1, value] for name, value in zip(names, bytes_of_parts, strict=True)})


def test_memory_is_told_in_models_and_against_scaffold() -> None:
    """A model of 400 bytes; the largest values count, of two rounds."""
    results = {"FedAvg": [memory(400, 0, 0, 0, 1200)], "SCAFFOLD": [memory(400, 0, 0, 400, 1600)]}
    results["SSF, rank 0.2"] = [memory(400, 80, 20, 80, 2000)]
    found = ssf_steps.memory_of(results)
    told = {name: [quantity.values[method][0] for method in results] for name, quantity in found.items()}
    assert told == {
        "model": [1.0, 1.0, 1.0],
        "coordinates": [0.0, 0.0, 0.2],
        "basis": [0.0, 0.0, 0.05],
        "controls": [0.0, 1.0, 0.2],
        "peak": [3.0, 4.0, 5.0],
        "controls, of SCAFFOLD's": [0.0, 1.0, 0.2],
        "peak, of SCAFFOLD's": [0.75, 1.0, 1.25],
    }


def test_time_is_the_median_of_the_rounds_after_the_first_against_fedavg_of_the_same_repeat() -> None:
    steps = {
        "FedAvg": ([9.0, 2.0, 3.0, 4.0], [9.0, 4.0, 4.0, 9.0]),
        "SCAFFOLD": ([0.0, 6.0, 6.0, 9.0], [0.0, 5.0, 2.0]),
    }
    results = {name: [outcome(**{MILLISECONDS: row}) for row in rows] for name, rows in steps.items()}
    found = ssf_steps.time_of(results)
    assert found["ms a step"].values == {"FedAvg": [3.0, 4.0], "SCAFFOLD": [6.0, 3.5]}
    assert found["of FedAvg's"].values == {"FedAvg": [1.0, 1.0], "SCAFFOLD": [2.0, 0.875]}


class Pretended:
    """A laboratory that notes the order of its runs; FedAvg's steps take 2 ms, all others' 3."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []

    def outcomes(self, runs: Iterable[Run]) -> None:
        self.made += [(run.config, run.seed) for run in runs]

    def by_group(self, runs: dict[str, list[Run]]) -> dict[str, list[Any]]:
        return {name: [outcome(**{MILLISECONDS: [9.0, 2.0 + (name != "FedAvg")]}) for _ in runs[name]] for name in runs}


def test_methods_take_turns() -> None:
    laboratory: Any = Pretended()
    options = ssf_steps.options_of(["time", "--seeds", "2"])
    found = ssf_steps.STUDIES["time"].reproduce(laboratory, options)
    configs = ["fedavg.yaml", "scaffold.yaml", *["ssf.yaml"] * 3]
    assert laboratory.made == [(config, seed) for seed in (0, 1) for config in configs]
    assert Numbers(found.numbers).mean("SSF, rank 0.5", "of FedAvg's", "LeNet-5 with GroupNorm") == 1.5
    assert [row[1] for row in found.table.rows] == list(ssf_steps.METHODS)


def test_runs_are_watched_and_plain() -> None:
    runs = ssf_steps.STUDIES["memory"].on(mlp(7)).runs([0], 1, "cpu")
    settings = runs["SSF, rank 0.2"][0].settings
    assert settings["trainer.callbacks.init_args.subspace.init_args.rank"] == 0.2
    assert settings["trainer.callbacks+"] == "tools.papers.step_observers.StepMemory"
    assert list(settings).index("trainer.callbacks+") > list(settings).index(ssf_steps.RANK)
    assert (settings["trainer.engine"], settings["trainer.trace_steps"]) == ("sequential", False)
    assert (settings["trainer.local_epochs"], settings["trainer.local_steps"]) == ("null", 2)
    assert settings["model.init_args.backbone.init_args.hidden"] == "[7]"


def test_time_is_not_measured_beside_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ssf_steps.options_of(["memory", "time", "--jobs", "2"])
    assert "`--jobs 1`" in capsys.readouterr().err
    assert ssf_steps.options_of(["memory", "--jobs", "2"]).jobs == 2
