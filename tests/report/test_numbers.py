"""Numbers with few digits."""

import math

from lfl.report.numbers import digits_for, last_tenth, mean_and_deviation, told_first


def test_the_last_tenth_of_twenty_is_two_and_of_five_one() -> None:
    assert last_tenth([*range(18), 10.0, 20.0]) == 15.0
    assert last_tenth([1.0, 2.0, 3.0, 4.0, 6.0]) == 6.0
    assert last_tenth([1.0, 2.0, 3.0], least=3) == 2.0
    assert math.isnan(last_tenth([]))


def test_mean_and_deviation() -> None:
    assert mean_and_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert mean_and_deviation([0.25], 2) == "0.25"
    assert mean_and_deviation([]) == ""


def test_who_never_reached_it_is_counted() -> None:
    assert told_first([10, None, 20]) == "15 ± 7 (1 never)"
    assert told_first([None, None]) == "(2 never)"


def test_digits_show_four_of_the_largest() -> None:
    assert [digits_for([value]) for value in (0.5, 5.0, 50.0, 5000.0, 1e-9, math.nan)] == [4, 3, 2, 0, 6, 0]
