"""Rates of convergence by hand, and the schedule that the theorem asks for."""

import math

import pytest
import torch

from tools.papers import flss_convergence
from tools.papers.experiments import Outcome
from tools.papers.schedules import InverseTime


def outcome(scale: float, power: float) -> Outcome:
    """An error that falls as a power of the round, but for the first tenth of the rounds."""
    rounds = range(100, 10_001, 100)
    return Outcome(10_000, 0.0, "", {"val_error": {n: scale * n**power if n > 1000 else 1.0 for n in rounds}})


def test_the_slope_is_that_of_the_squared_error() -> None:
    assert flss_convergence.slope(outcome(3.0, -0.5)) == pytest.approx(-1.0)
    assert math.isnan(flss_convergence.slope(Outcome(10, 0.0, "", {"val_error": {10: 1.0}})))


def test_what_participants_save() -> None:
    """Half of the error each time: log 2."""
    results = {
        flss_convergence.of_so_many(name, clients): [outcome(10.0 / clients, -0.5)]
        for name in ("FedAvg", "FLSS")
        for clients in (5, 10, 20)
    }
    found = flss_convergence.measure(results)
    assert found["log of the error saved"].values["FLSS, 20 clients"] == [pytest.approx(math.log(2))]
    assert "FLSS, 5 clients" not in found["log of the error saved"].values
    assert found["-0.9 less the slope"].values["FLSS, 5 clients"] == [pytest.approx(0.1)]


def test_rates_fall_as_one_over_the_round() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    schedule = InverseTime(optimizer, offset=2.0)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 * 2 / 4])
