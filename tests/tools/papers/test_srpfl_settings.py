"""The paper's other settings: what is measured, of made-up runs, and what the studies change."""

import math
from pathlib import Path

import pytest

from tools.papers import srpfl_settings as settings
from tools.papers.experiments import Outcome, Run
from tools.papers.kept import read
from tools.papers.study import Method


def outcome(seconds_a_round: float, **accuracies: dict[int, float]) -> Outcome:
    """A run with metrics ``SCOPE/val_acc`` by round."""
    times = {number: number * seconds_a_round for number in next(iter(accuracies.values()))}
    series = {f"{scope}/val_acc": values for scope, values in accuracies.items()}
    return Outcome(max(times), 0.0, "", {**series, "sim/time": times})


RISING = {20: 0.4, 40: 0.6, 80: 0.9}


def runs_under(condition: str, slow: float, fast: float) -> dict[str, list[Outcome]]:
    """FedRep with rounds of ``slow`` seconds, FedRep-SRPFL with the same accuracies and rounds of ``fast``."""
    pairs = ((settings.FEDREP, slow), (settings.SRPFL, fast))
    return {f"{name}, {condition}": [outcome(seconds, personal=RISING)] for name, seconds in pairs}


def test_methods_under_conditions_are_read_on_their_own_clock() -> None:
    """FedRep's rounds 20, 40, 80 end at 80, 160, 320 s in both; SRPFL has rounds of 2 s in one, of 4 s in the other.

    So SRPFL is read at 60 and 90 % at first, after which it has ended, and then as FedRep is: (40 + 60 + 90) / 3.
    """
    results = {**runs_under("before", 4.0, 2.0), **runs_under("after", 4.0, 4.0)}
    found = settings.compared(results, ["before", "after"])
    means = found["mean accuracy %"].values
    assert means["FedRep, before"] == means["FedRep, after"] == means["FedRep-SRPFL, after"]
    assert means["FedRep, before"] == [pytest.approx(190 / 3)]
    assert means["FedRep-SRPFL, before"] == [pytest.approx(75)]
    assert found["lead"].values == {
        "FedRep-SRPFL, before": [pytest.approx(75 - 190 / 3)],
        "FedRep-SRPFL, after": [pytest.approx(0)],
    }
    assert found["loss of lead"].values == {"FedRep-SRPFL, after": [pytest.approx(75 - 190 / 3)]}
    assert found["s to 85 %"].values["FedRep-SRPFL, before"] == [160]
    assert found["times as long"].values == {"FedRep, after": [1.0], "FedRep-SRPFL, after": [2.0]}


def test_doubling_examples_is_compared_with_doubling_clients() -> None:
    better = {number: value + 0.05 for number, value in RISING.items()}
    results = {
        "doubling clients, here": [outcome(1.0, personal=RISING)],
        "doubling examples, here": [outcome(1.0, personal=better)],
    }
    found = settings.compared(results, ["here"])
    assert list(found) == ["mean accuracy %", "lead", "s to 85 %"]
    assert found["lead"].values == {"doubling examples, here": [pytest.approx(5.0)]}


def test_what_was_never_reached_is_no_multiple() -> None:
    assert settings.times(6.0, 2.0) == 3.0
    assert settings.times(math.inf, 2.0) == math.inf
    assert math.isnan(settings.times(6.0, math.inf))


def test_every_method_is_crossed_with_every_condition() -> None:
    made = settings.crossed({"A": Method("a.yaml", (("x", 1),))}, {"one": (("y", 1),), "two": (("y", 2), ("z", 3))})
    assert list(made) == ["A, one", "A, two"]
    assert made["A, two"] == Method("a.yaml", (("x", 1), ("y", 2), ("z", 3)))


def test_a_difference_counts_in_both_directions() -> None:
    """What is drawn for a stage is 1 point behind: within two points of the other, in either direction."""
    results = {
        settings.ROUND: [outcome(1.0, personal={10: 0.5, 20: 0.7})],
        settings.STAGE: [outcome(1.0, personal={10: 0.48, 20: 0.7})],
    }
    found = settings.measure_resampling(results)
    assert found["stage less round, plus 2"].values[settings.SRPFL] == [pytest.approx(1.0)]
    assert found["round less stage, plus 2"].values[settings.SRPFL] == [pytest.approx(3.0)]
    del results[settings.STAGE]
    assert list(settings.measure_resampling(results)) == ["mean accuracy %"]


def test_new_clients_are_compared_with_known_ones_after_the_last_round() -> None:
    run = outcome(1.0, fine_tuned={50: 0.5, 100: 0.96}, new={50: 0.9, 100: 0.95})
    found = settings.measure_new({"A": [run]})
    assert found["new less known"].values["A"] == [pytest.approx(-1.0)]
    assert found["new less known, plus 2"].values["A"] == [pytest.approx(1.0)]


def test_the_end_is_the_mean_of_the_last_evaluations() -> None:
    """Three of them, where there are no more than thirty."""
    slow = {5: 0.1, 10: 0.6, 15: 0.7, 20: 0.8}
    results = {
        "FedRep": [outcome(1.0, personal=dict.fromkeys(slow, 0.9), slowest=slow)],
        "FedRep-SRPFL": [outcome(1.0, personal=dict.fromkeys(slow, 0.89), slowest=dict.fromkeys(slow, 0.75))],
    }
    found = settings.measure_end(results)
    assert found["slowest tenth %"].values["FedRep"] == [pytest.approx(70)]
    assert found["lead, plus 2"].values["FedRep-SRPFL"] == [pytest.approx(1.0)]
    assert found["lead of the slowest tenth"].values == {"FedRep-SRPFL": [pytest.approx(5.0)]}


def differences(one: Run, other: Run) -> set[str]:
    """Settings in which two runs differ."""
    first, second = one.settings, other.settings
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


@pytest.mark.parametrize(
    ("study", "one", "other", "changed"),
    [
        ("resample", settings.ROUND, settings.STAGE, {"trainer.participation.init_args.resample"}),
        (
            "examples",
            "doubling clients, sigma 1",
            "doubling examples, sigma 1",
            {"trainer.participation.init_args.doubles"},
        ),
        (
            "examples",
            "doubling clients, sigma 1",
            "doubling clients, sigma 2",
            {"data.init_args.partitioner.init_args.sigma"},
        ),
        ("imbalance", "FedRep, equal", "FedRep, log-normal", {"data.init_args.partitioner.init_args.sigma"}),
        ("mixture", "FedRep, 10 %", "FedRep, 30 %", {"trainer.system"}),
    ],
)
def test_conditions_change_one_thing(study: str, one: str, other: str, changed: set[str]) -> None:
    runs = settings.STUDIES[study].runs([0], 100, "cpu")
    assert differences(runs[one][0], runs[other][0]) == changed


def test_a_condition_that_is_asked_for_alone_keeps_its_clock() -> None:
    only = settings.STUDIES["mixture"].only(["FedRep-SRPFL, 30 %"])
    assert list(only.methods) == ["FedRep, 10 %", "FedRep, 30 %", "FedRep-SRPFL, 30 %"]


_SLOWEST = ["lead of the slowest tenth", "lead of the slowest tenth, plus 2"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
@pytest.mark.parametrize(
    ("study", "quantities"),
    [
        ("new-clients", ["known clients %", "new clients %", "new less known", "new less known, plus 2"]),
        ("end", ["all clients %", "slowest tenth %", "lead", "lead, plus 2", *_SLOWEST]),
    ],
)
def test_quick_study(study: str, quantities: list[str], tmp_path: Path) -> None:
    settings.main([study, "--quick", "--rounds", "1", "--output", str(tmp_path)])
    rows = read(tmp_path / f"srpfl_settings-{study}-numbers.csv")
    assert list(dict.fromkeys(row.quantity for row in rows)) == quantities
    assert {row.method for row in rows} == set(settings.STUDIES[study].methods)
