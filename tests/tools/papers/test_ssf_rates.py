"""The search for a learning rate on made-up results."""

import math
from typing import Any

import pytest

from tools.papers import ssf_rates
from tools.papers.experiments import Outcome
from tools.papers.kept import Numbers
from tools.papers.ssf import Method
from tools.papers.ssf_rates import Cell, selected

NAN = math.nan
SEARCH = ssf_rates.TARGETS["ssf-rates"]


def test_the_rate_of_the_lowest_mean_is_selected_if_no_run_of_it_diverges() -> None:
    """Means 0.5, 0.25 and 0.2; of the last rate one run is not finite, of the one before it one ends above 1."""
    errors = {1e-4: [0.5, 0.5], 1e-3: [0.2, 0.3], 1e-2: [0.01, 1.01], 1e-1: [0.2, NAN]}
    assert selected(errors) == 1e-3
    assert selected({**errors, 1e-2: [0.01, 0.4]}) == 1e-2
    assert selected({**errors, 1e-2: [0.01, math.inf]}) == 1e-3
    assert math.isnan(selected({1e-1: [NAN, NAN]}))


def test_a_run_that_was_ended_by_its_update_has_no_error() -> None:
    assert ssf_rates.error_at_end(Outcome(20, 0.0, "", {"val_error": {10: 0.5, 20: 0.25}}), 20) == 0.25
    assert math.isnan(ssf_rates.error_at_end(Outcome(12, 0.0, "not finite", {"val_error": {10: 7.0}}), 20))


def test_runs_differ_in_rate_and_heterogeneity_only() -> None:
    cell = Cell(2.0, Method("SCAFFOLD", "sampled_mean"))
    run = cell.run(1e-3, seed=1, rounds=500)
    assert (run.config, run.rounds, run.seed) == ("matrix_regression_scaffold.yaml", 500, 1)
    assert dict(run.overrides) == {
        "data.init_args.heterogeneity": 2.0,
        "model.init_args.lr": 1e-3,
        "trainer.check_val_every_n_rounds": 500,
        "trainer.callbacks.init_args.control_update": "sampled_mean",
    }


def test_numbers_are_errors_by_rate_and_the_rate_that_is_selected() -> None:
    cell = Cell(0.1, Method("SCAFFOLD", "increment"))
    errors = {cell: {1e-4: [0.9, 0.8], 1e-3: [0.2, 0.4], 1e-2: [0.1, 0.3], 1e-1: [NAN, 5.0]}}
    numbers = Numbers(SEARCH.numbers(errors, seeds=2))
    assert numbers.settings == ["het 0.1"]
    assert numbers.mean("SCAFFOLD, increment", "rate selected", "het 0.1") == 1e-2
    assert numbers.mean("SCAFFOLD, increment, rate 0.001", "error at the end", "het 0.1") == pytest.approx(0.3)
    assert numbers.of("SCAFFOLD, increment, rate 0.1", "error at the end", "het 0.1")[1].value == 5.0
    (line,) = SEARCH.tabulate(errors, 500, 2).rows
    cells: list[Any] = ["8.50e-01", "3.00e-01", "2.00e-01", "2 of 2 diverged"]
    assert line == ["SCAFFOLD, increment", "0.1", *cells, "0.01", "0.01"]
