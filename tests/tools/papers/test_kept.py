"""The numbers that studies leave: what is written is read, and what there is none of is said."""

import math
from pathlib import Path

import pytest

from tools.papers.kept import Number, Numbers, Quantity, beside, numbers_of, quantities_of, read, tabulate, write


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    numbers = [
        Number("het 2", "SSF", "rms tail", 0, 0.00123456),
        Number("", "FedAvg", "s to 90 %, C = 0", 1, math.inf),
        Number("", "FedRep", "accuracy %", None, 78.2, 2.7, 3),
    ]
    path = write(numbers, tmp_path / "data" / "study.csv")
    first, second, third = read(path)
    assert (first.setting, first.method, first.quantity, first.seed, first.value) == (
        "het 2",
        "SSF",
        "rms tail",
        0,
        0.00123456,
    )
    assert second.value == math.inf
    assert third == numbers[2]
    assert path.read_text().splitlines()[1] == "het 2,SSF,rms tail,0,0.00123456,nan,1"


def test_a_table_tells_means_and_what_was_never_reached() -> None:
    quantities = {
        "accuracy %": Quantity({"FedAvg": [90.0, 92.0], "FLSS": [91.0, math.nan]}),
        "rounds": Quantity({"FedAvg": [10, math.inf], "FLSS": [math.inf, math.inf]}, digits=0),
    }
    table = tabulate("title", quantities)
    assert table.columns == ["method", "accuracy %", "rounds"]
    assert table.rows == [["FedAvg", "91.0 ± 1.4", "10 (1 never)"], ["FLSS", "91.0", "(2 never)"]]
    rows = numbers_of(quantities, "somewhere")
    assert len(rows) == 8
    assert rows[1] == Number("somewhere", "FedAvg", "accuracy %", 1, 92.0)


def test_means_and_medians_by_name() -> None:
    numbers = Numbers([Number("a", "M", "x", seed, value) for seed, value in enumerate((1.0, 2.0, 6.0))])
    assert (numbers.mean("M", "x", "a"), numbers.median("M", "x", "a")) == (3.0, 2.0)
    assert (numbers.settings, numbers.methods("x", "a")) == (["a"], ["M"])
    with pytest.raises(KeyError, match=r"no number.*there are 'a': 'M': 'x'"):
        numbers.mean("M", "y", "a")


def test_more_runs_stand_beside_those_that_are_kept(tmp_path: Path) -> None:
    """A run that is made again replaces its numbers; a mean, whose runs are lost, goes."""
    kept = numbers_of({"accuracy": Quantity({"FedAvg": [0.5, 0.6]}), "MB": Quantity({"FedAvg": [7.0, 7.0]})})
    path = write([*kept, Number("", "FLSS", "accuracy", None, 0.7, 0.1, 3)], tmp_path / "kept.csv")
    more = numbers_of({"accuracy": Quantity({"FedAvg": [0.65, 0.8], "FLSS": [0.9, 0.95]})}, first_seed=1)
    found = beside(more, path)
    accuracies = [(row.method, row.seed, row.value) for row in found if row.quantity == "accuracy"]
    expected = [("FedAvg", 0, 0.5), ("FedAvg", 1, 0.65), ("FedAvg", 2, 0.8), ("FLSS", 1, 0.9), ("FLSS", 2, 0.95)]
    assert accuracies == expected
    assert [row.seed for row in found if row.quantity == "MB"] == [0, 1]
    assert beside(more, tmp_path / "none.csv") == more
    assert quantities_of(found, {"accuracy": 2})["accuracy"].told("FLSS") == "0.93 ± 0.04"
