"""Claims and the numbers that decide them."""

import math

from tools.papers.claims import difference, ordered

INF, NAN = math.inf, math.nan


def test_an_order_with_a_diverged_value() -> None:
    assert ordered("", {"a": 1.0, "b": NAN}).holds
    assert not ordered("", {"a": NAN, "b": 1.0}).holds
    assert not ordered("", {"a": 1.0, "b": 1.0}).holds
    assert ordered("", {"a": 6.3e-3, "b": INF}).numbers == "a 6.30e-03, b diverged"
    assert ordered("", {"a": NAN, "b": INF}).holds is None  # nothing to compare


def test_differences_are_paired() -> None:
    claim = difference("", [3.0, 2.0], [1.0, 1.5])
    assert (claim.holds, claim.numbers) == (True, "+1.2 (+2.0 +0.5)")
    assert difference("", [3.0, 1.0], [1.0, 1.5]).holds is False
    assert difference("", [NAN], [1.0]).holds is None  # nothing was read
