"""Other readings of a method, on numbers by hand."""

from tools.papers.kept import Number, Numbers
from tools.papers.readings import read_otherwise

ROWS = {"SSF, increment": 1.0, "SSF, sampled_mean": 3.0, "FedAvg": 2.0, "FedSub, stale": 4.0}
NUMBERS = Numbers([Number("", name, "error", seed, value) for name, value in ROWS.items() for seed in range(3)])
AHEAD = {"better": "SSF, increment", "than": "FedAvg", "quantity": "error", "lower": True}


def test_the_other_reading_decides_by_its_own_numbers() -> None:
    assert list(read_otherwise(AHEAD, NUMBERS)) == [("SSF, sampled_mean", "SSF, increment", "does not hold")]


def test_names_stand_anywhere_in_a_rule() -> None:
    near = {"near": {"": {"SSF, sampled_mean": 3.0}}, "quantity": "error", "factor": 1.5}
    rule = {"all": [near, {"better": ["FedAvg"], "than": ["FedSub, stale"], "quantity": "error", "lower": True}]}
    # Of FedSub's other reading there are no numbers.
    assert list(read_otherwise(rule, NUMBERS)) == [("SSF, increment", "SSF, sampled_mean", "does not hold")]


def test_rules_that_name_both_and_those_of_a_person_have_no_other() -> None:
    both = {"better": "SSF, increment", "than": ["SSF, sampled_mean", "FedAvg"], "quantity": "error", "lower": True}
    assert not list(read_otherwise(both, NUMBERS))
    assert not list(read_otherwise({"verdict": "holds"}, NUMBERS))
