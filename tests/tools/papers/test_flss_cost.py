"""The cost of FLSS's decomposition: ratios by hand, and which rounds are counted as what."""

from dataclasses import replace

import pytest

from lfl.callbacks import FLSS
from tools.papers import flss_cost
from tools.papers.flss_cost import CASES, Case, Seconds

FOUND = Seconds(short=0.3, doubled=0.6, projected=0.4, sampled=1.65, decomposition=0.27, first=10.0)


def test_a_rounds_part_of_the_decomposition() -> None:
    """Two steps take 0.3 s, so 88 more 13.2: of 13.5 s a fifth of 0.27 s is 0.4 %."""
    case = CASES["CNN"]
    assert (case.few, case.steps) == (2, 90)
    assert FOUND.training(case) == pytest.approx(13.5)
    assert FOUND.share(case) == pytest.approx(0.4)
    found = {name: quantity.values["CNN"] for name, quantity in flss_cost.quantities({"CNN": [FOUND]}).items()}
    assert found["sampled / FedAvg's"] == [pytest.approx(1.1)]
    assert found["5 % less the decomposition"] == [pytest.approx(4.6)]


def test_every_fifth_round_after_the_warm_up_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up rounds take 9 s, projected ones 2, sampled ones 3; FedAvg's a second for a step, the first three 50."""

    def pretended(case: Case, steps: int, last: int, callbacks: list[FLSS]) -> dict[int, float]:
        if not callbacks:
            return {number: 50.0 if number <= 3 else float(steps) for number in range(1, last + 1)}
        (flss,) = callbacks
        kinds = {number: (number - flss.warmup_rounds) % 5 for number in range(1, last + 1)}
        return {n: 9.0 if n <= flss.warmup_rounds else 2.0 if kind else 3.0 for n, kind in kinds.items()}

    monkeypatch.setattr(flss_cost, "rounds_of", pretended)
    case = replace(CASES["MLP"], warmup=3)
    found = flss_cost.measured(case, 2)
    assert (found.short, found.doubled, found.projected, found.sampled) == (10.0, 20.0, 2.0, 3.0)
    assert found.training(case) == pytest.approx(20.0)
    assert 0 < found.decomposition < 5


def test_a_round_has_a_time() -> None:
    case = replace(CASES["MLP"], rank=2)
    times = flss_cost.rounds_of(case, 2, 4, [FLSS(warmup_rounds=2, rank=2)])
    assert list(times) == [1, 2, 3, 4]
    assert all(seconds > 0 for seconds in times.values())
