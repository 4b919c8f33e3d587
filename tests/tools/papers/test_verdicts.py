"""Verdicts by hand-made numbers: intervals by hand, ties, runs that diverged, and what cannot be told."""

import math
from typing import Any

import pytest

from tools.papers.kept import Number, Numbers
from tools.papers.verdicts import Verdict, decide, kind_of

INF, NAN = math.inf, math.nan


def numbers(values: dict[str, list[float]], quantity: str = "q", setting: str = "") -> Numbers:
    return Numbers(
        [Number(setting, method, quantity, seed, v) for method, vs in values.items() for seed, v in enumerate(vs)]
    )


def verdict(rule: dict[str, Any], found: Numbers) -> str:
    return str(decide({"quantity": "q", **rule}, found).verdict)


def test_a_paired_difference_beyond_its_interval_decides() -> None:
    """Differences 2, 3, 4: mean 3, deviation 1, t(2) = 4.303, so 3 ± 4.303 / sqrt(3) = 3 ± 2.48."""
    found = numbers({"A": [12.0, 23.0, 34.0], "B": [10.0, 20.0, 30.0]})
    decision = decide({"better": "A", "than": "B", "quantity": "q"}, found)
    assert (decision.verdict, decision.numbers) == (Verdict.HOLDS, "A against B: +3.00 [+0.516, +5.48]")
    assert verdict({"better": "B", "than": "A"}, found) == "does not hold"
    assert verdict({"better": "B", "than": "A", "lower": True}, found) == "holds"


def test_several_quantities_and_a_text_beside_the_rule() -> None:
    rows = [Number("s", m, q, i, v + i / 10) for q in ("p", "q") for m, v in (("A", 1.0), ("B", 2.0)) for i in range(3)]
    decision = decide(
        {"better": "A", "than": "B", "quantity": ["p", "q"], "lower": True, "numbers": "A has <A; p; s>"}, Numbers(rows)
    )
    assert (
        decision.numbers == "A has 1.10; A against B (p): -1.00 [-1.00, -1.00]; A against B (q): -1.00 [-1.00, -1.00]"
    )
    assert decision.verdict == Verdict.HOLDS


def test_less_may_be_better_of_some_quantities_alone() -> None:
    """A has one accuracy more with every seed, and takes two rounds less."""
    values = {"accuracy": {"A": 91.0, "B": 90.0}, "rounds": {"A": 3.0, "B": 5.0}}
    rows = [Number("", m, q, i, v + i / 10) for q, by in values.items() for m, v in by.items() for i in range(3)]
    rule = {"better": "A", "than": "B", "quantity": ["accuracy", "rounds"]}
    assert verdict({**rule, "lower": ["rounds"]}, Numbers(rows)) == "holds"
    assert verdict({**rule, "lower": True}, Numbers(rows)) == "does not hold"
    assert verdict(rule, Numbers(rows)) == "does not hold"


def test_what_an_interval_leaves_open_is_not_tested() -> None:
    found = numbers({"A": [1.0, 3.0, 2.0], "B": [0.0, 4.0, 1.0], "C": [9.0, 9.0, 9.5]})
    decision = decide({"better": "A", "than": "B", "quantity": "q"}, found)
    assert decision.verdict == Verdict.OPEN
    assert decision.numbers.endswith("these runs cannot tell")
    # One comparison that shows the opposite is enough, beside one that is open.
    assert verdict({"better": "A", "than": "others"}, found) == "does not hold"
    assert verdict({"better": "A", "than": "B"}, numbers({"A": [2.0], "B": [1.0]})) == "not tested"  # one seed


def test_runs_that_diverged_leave_no_interval() -> None:
    decision = decide({"better": "A", "than": "B", "quantity": "q"}, numbers({"A": [2.0, 3.0], "B": [1.0, NAN]}))
    assert (decision.verdict, decision.numbers) == (
        Verdict.OPEN,
        "A against B: +1.00, not finite: these runs cannot tell",
    )


def test_ratios() -> None:
    """Twice as much with every seed: the logarithms do not vary."""
    found = numbers({"A": [2.0, 4.0, 8.1], "B": [1.0, 2.0, 4.0]})
    decision = decide({"better": "A", "than": "B", "quantity": "q", "lower": True, "statistic": "ratio"}, found)
    assert decision.verdict == Verdict.FAILS
    assert decision.numbers.startswith("A against B: times 2.01 [")


def test_wins_are_counted_and_never_is_the_slowest() -> None:
    """Ten of ten by chance: p = 2 / 1024; 7 of 10: 0.34."""
    found = numbers({"A": [1.0] * 10, "B": [2.0] * 9 + [INF], "C": [2.0] * 7 + [0.5] * 3})
    rule = {"better": "A", "lower": True, "statistic": "wins"}
    assert (
        decide({**rule, "than": "B", "quantity": "q"}, found).numbers == "A against B: 10 of 10 (sign test p = 0.002)"
    )
    assert verdict({**rule, "than": "B"}, found) == "holds"
    assert verdict({**rule, "than": "C"}, found) == "not tested"


def test_means_without_their_runs_are_compared_unpaired() -> None:
    """Means 10 and 8 of four runs, deviations 1 and 1: t(6) = 2.447, 2 ± 2.447 sqrt(1/2) = 2 ± 1.73."""
    rows = [
        Number("", "A", "q", None, 10.0, 1.0, 4),
        Number("", "B", "q", None, 8.0, 1.0, 4),
        Number("", "C", "q", None, 1.0),
    ]
    decision = decide({"better": "A", "than": "B", "quantity": "q"}, Numbers(rows))
    assert (decision.verdict, decision.numbers) == (Verdict.HOLDS, "A against B: +2.00 [+0.270, +3.73, unpaired]")
    assert verdict({"better": "A", "than": "C"}, Numbers(rows)) == "not tested"  # no spread is known
    assert verdict({"better": "A", "than": "C", "statistic": "plain"}, Numbers(rows)) == "holds"


def test_plain_means_put_what_diverged_last() -> None:
    found = numbers({"A": [1.0], "B": [NAN], "C": [1.0]})
    assert verdict({"order": ["A", "B"], "lower": True, "statistic": "plain"}, found) == "holds"
    assert verdict({"order": ["B", "A"], "lower": True, "statistic": "plain"}, found) == "does not hold"
    assert verdict({"order": ["A", "C"], "statistic": "plain"}, found) == "not tested"  # equal


def test_improvement_over_settings_and_over_quantities() -> None:
    rows = [Number(s, "A", "q", seed, v + seed / 10) for s, v in (("r = 1", 5.0), ("r = 2", 3.0)) for seed in range(3)]
    rule = {"improves": "A", "lower": True, "settings": ["r = 1", "r = 2"]}
    assert verdict(rule, Numbers(rows)) == "holds"
    assert verdict({**rule, "settings": ["r = 2", "r = 1"]}, Numbers(rows)) == "does not hold"
    leads = [Number("", "A", q, None, v, math.nan, 3) for q, v in (("C = 10", -6.0), ("C = 0", 5.0))]
    decision = decide({"improves": "A", "quantities": ["C = 10", "C = 0"], "statistic": "plain"}, Numbers(leads))
    assert (decision.verdict, decision.numbers) == (Verdict.HOLDS, "A, C = 0 against C = 10: 5.00 and -6.00")


def test_what_is_above_zero() -> None:
    found = numbers({"A": [5.4, 6.1, 6.3], "B": [-1.0, 0.5, 0.6]})
    assert verdict({"positive": "A"}, found) == "holds"
    assert verdict({"positive": ["A", "B"]}, found) == "not tested"
    assert verdict({"positive": "B", "quantity": "q", "lower": True}, found) == "not tested"


def test_published_numbers_are_met_within_a_factor() -> None:
    found = numbers({"A": [1.1], "B": [2.0]}, setting="het 2")
    near = {"het 2": {"A": 1.0, "B": 2.5}}
    decision = decide({"near": near, "factor": 1.3, "quantity": "q"}, found)
    assert (decision.verdict, decision.numbers) == (Verdict.HOLDS, "ours / paper: A (het 2) 1.10, B (het 2) 0.80")
    assert verdict({"near": near, "factor": 1.2}, found) == "does not hold"


def test_a_person_decides_with_numbers_of_the_file() -> None:
    found = numbers({"A": [1.0, 2.0, 6.0]}, setting="s")
    text = "mean <A; q; s>, median <median A; q; s>"
    decision = decide({"verdict": "outside", "numbers": text}, found)
    assert (decision.verdict, decision.numbers) == (Verdict.OUTSIDE, "mean 3.00, median 2.00")
    with pytest.raises(KeyError, match="no number"):
        decide({"verdict": "holds", "numbers": "<B; q; s>"}, found)
    with pytest.raises(ValueError, match="is not a valid Verdict"):
        decide({"verdict": "maybe"}, found)
    with pytest.raises(ValueError, match="no rule in"):
        decide({"bettr": "A"}, found)


def test_what_was_never_reached_may_stand_for_the_length_of_the_run() -> None:
    """Differences -200, -180 and -160: deviation 20, t(2) = 4.303, so -180 ± 4.303 * 20 / sqrt(3) = -180 ± 49.7."""
    found = numbers({"A": [100.0, 120.0, 140.0], "B": [300.0, INF, 300.0]})
    rule = {"better": "A", "than": "B", "lower": True}
    assert verdict(rule, found) == "not tested"
    assert decide({"quantity": "q", "never": 300, **rule}, found).numbers == (
        "A against B: -180 [-230, -130] (a run that never got there counts 300)"
    )
    assert verdict({"never": 300, **rule}, found) == "holds"


def test_ties_are_told_beside_the_pairs_that_decide() -> None:
    """Of one win and one loss a sign test says nothing; eight ties are no losses."""
    found = numbers({"A": [1.0, 2.0, *[5.0] * 8], "B": [2.0, 1.0, *[5.0] * 8]})
    rule = {"better": "A", "than": "B", "quantity": "q", "lower": True, "statistic": "wins"}
    assert decide(rule, found).numbers == (
        "A against B: 1 of 2, 8 more not decided (sign test p = 1): these runs cannot tell"
    )


def test_the_kind_of_a_rule() -> None:
    assert kind_of({"better": "A", "than": "B"}) == "intervals of differences"
    assert kind_of({"better": "A", "than": "B", "statistic": "plain"}) == "means as they are"
    assert kind_of({"near": {}, "factor": 1.5}) == "a factor of 1.5"
    assert kind_of({"verdict": "holds"}) == "a person"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"better": "A", "than": "C"}, "holds"),
        ({"better": "C", "than": "A"}, "does not hold"),
        ({"better": "A", "than": "D"}, "not tested"),
        ({"verdict": "outside"}, "outside"),
    ],
)
def test_a_claim_of_several_parts_holds_if_all_do(second: dict[str, Any], expected: str) -> None:
    found = numbers({"A": [3.0, 3.1, 3.2], "B": [1.0, 1.0, 1.0], "C": [2.0, 2.0, 2.0], "D": [3.1, 3.0, 3.3]})
    parts = [{"better": "A", "than": "B", "quantity": "q"}, {"quantity": "q", **second}]
    decision = decide({"all": parts}, found)
    assert decision.verdict == expected
    assert decision.numbers.startswith("A against B: +2.10 [+1.85, +2.35]")


def test_the_kinds_of_several_parts_are_told_once() -> None:
    parts = [{"better": "A", "than": "B"}, {"near": {}, "factor": 1.5}, {"positive": "A"}]
    assert kind_of({"all": parts}) == "intervals of differences and a factor of 1.5"


def test_a_number_may_be_near_to_that_of_another_method() -> None:
    found = numbers({"A": [3.0, 5.0], "B": [2.0, 4.0]}, setting="s")
    rule = {"near": {"s": {"A": "<B; q; s>"}}, "told": "B's", "quantity": "q"}
    assert decide({**rule, "factor": 1.4}, found).numbers == "ours / B's: A (s) 1.33"
    assert [verdict({**rule, "factor": factor}, found) for factor in (1.4, 1.3)] == ["holds", "does not hold"]
