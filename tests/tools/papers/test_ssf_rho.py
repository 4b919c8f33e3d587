"""SSF's rate against rho on made-up results."""

import math
from typing import Any

import pytest

from tools.papers import ssf_rho
from tools.papers.experiments import Outcome
from tools.papers.gradient_norm import SQUARE
from tools.papers.kept import Numbers

STUDY = ssf_rho.TARGETS["ssf-rho"]


def outcome(squares: dict[int, float], failure: str = "") -> Any:
    return Outcome(max(squares), 0.0, failure, {SQUARE: squares})


def test_a_level_is_reached_at_the_first_norm_that_is_down_to_it() -> None:
    run = outcome({10: 0.5, 20: 0.01, 30: 0.02, 40: 1e-3})
    assert ssf_rho.rounds_to(run, 1e-2) == 20
    assert ssf_rho.rounds_to(run, 1e-4) == math.inf


def test_the_norm_at_the_end_is_the_mean_of_the_last_tenth() -> None:
    """Rounds 10 to 100 by tens and 95: those after 90 count, (2 + 4) / 2."""
    squares = dict.fromkeys(range(10, 100, 10), 100.0) | {95: 2.0, 100: 4.0}
    assert ssf_rho.at_end(outcome(squares), 100) == 3.0
    assert math.isnan(ssf_rho.at_end(outcome(squares, "not finite"), 100))
    assert math.isnan(ssf_rho.at_end(outcome({10: 1.0}), 100))


def test_multiples_are_of_the_whole_space_with_the_same_seed() -> None:
    """A fifth of the directions, 5 times and 4 times as many rounds: 1 and 0.8."""
    times = ssf_rho.Times({20: [500.0, 800.0, math.inf], 100: [100.0, 200.0, 300.0]})
    assert times.against_whole(20) == [1.0, 0.8, math.inf]
    assert times.against_whole(100) == [1.0, 1.0, 1.0]


def test_numbers_have_a_setting_for_each_measure() -> None:
    by_rank = {5: [2000.0], 10: [1000.0], 20: [500.0], 50: [200.0], 100: [80.0]}
    numbers = Numbers(STUDY.numbers({"rounds to 0.01": ssf_rho.Times(by_rank)}))
    assert numbers.mean("SSF, r = 10", "value", "rounds to 0.01") == 1000.0
    assert numbers.mean("SSF, r = 10", "times rho, of r = d", "rounds to 0.01") == pytest.approx(1.25)
    (line, *_) = STUDY.tabulate({"rounds to 0.01": ssf_rho.Times(by_rank)}, 100, 1).rows
    assert line == ["5", "0.05", "2000", "1.25"]


def test_runs_without_noise_take_whole_batches_and_end_at_the_last_level() -> None:
    exact, noisy = (dict(STUDY.run(20, is_noisy, 0, 100).overrides) for is_noisy in (False, True))
    assert exact["data.init_args.noise"] == 0.0
    assert exact["trainer.callbacks.init_args.least"] == 1e-4
    assert noisy.keys() - exact.keys() == {"trainer.callbacks.init_args.every"}
    assert noisy["trainer.callbacks.init_args.subspace.init_args.rank"] == 20
