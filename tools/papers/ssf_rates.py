"""The search for a learning rate of the SSF paper (section 5.1, equation 136), made again.

SCAFFOLD takes 500 rounds of the toy problem at each of four rates; the rate with the lowest relative error at the end
is selected, of those at which no run has diverged. All methods then have it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.papers.experiments import Laboratory, Outcome, Run, extent
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantity, numbers_of
from tools.papers.ssf import CONTROLS, ERROR, LEARNING_RATES, Method
from tools.table import Table

START = 1.0  # the relative error of X = 0, where all runs start


@dataclass(frozen=True)
class Cell:
    """A search: its method and its place.

    Attributes:
        heterogeneity: of the toy problem.
        method: SCAFFOLD, with one reading of its control.
    """

    heterogeneity: float
    method: Method

    @property
    def setting(self) -> str:
        """The place of the search, as the kept numbers name it."""
        return f"het {self.heterogeneity:g}"

    def run(self, rate: float, seed: int, rounds: int) -> Run:
        """One run."""
        overrides = (
            ("data.init_args.heterogeneity", self.heterogeneity),
            ("model.init_args.lr", rate),
            ("trainer.check_val_every_n_rounds", rounds),
            *self.method.overrides(rank=0),
        )
        return Run(self.method.config, rounds, seed, (ERROR,), overrides)


Errors = Mapping[float, Sequence[float]]  # at the end, one a seed, by rate; nan for a run that a step ended


@dataclass(frozen=True)
class RateSearch:
    """A search for learning rates to reproduce.

    Attributes:
        title: what it is.
        published: the paper's rates by heterogeneity.
        rates: of the grid.
        methods: that search.
        rounds: of every run.
        seeds: runs at every rate.
    """

    title: str
    published: Mapping[float, float]
    rates: Sequence[float]
    methods: Sequence[Method]
    rounds: int = 500
    seeds: int = 3

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        rounds, seeds = extent(options, self.rounds, self.seeds, quick_rounds=30)
        cells = [Cell(heterogeneity, method) for heterogeneity in self.published for method in self.methods]
        runs = {
            (cell, rate): [cell.run(rate, seed, rounds) for seed in range(seeds)]
            for cell in cells
            for rate in self.rates
        }
        found = laboratory.by_group(runs)
        errors = {
            cell: {rate: [error_at_end(outcome, rounds) for outcome in found[cell, rate]] for rate in self.rates}
            for cell in cells
        }
        return Findings(self.tabulate(errors, rounds, seeds), self.numbers(errors, seeds))

    def numbers(self, errors: Mapping[Cell, Errors], seeds: int) -> list[Number]:
        """The errors of all runs, and the rate that is selected by their means."""
        kept = []
        for cell, by_rate in errors.items():
            ends = Quantity({f"{cell.method}, rate {rate:g}": values for rate, values in by_rate.items()})
            kept += numbers_of({"error at the end": ends}, cell.setting)
            kept.append(Number(cell.setting, str(cell.method), "rate selected", None, selected(by_rate), runs=seeds))
        return kept

    def tabulate(self, errors: Mapping[Cell, Errors], rounds: int, seeds: int) -> Table:
        """A line for each search."""
        columns = ["method", "het", *(f"rate {rate:g}" for rate in self.rates), "selected", "paper"]
        table = Table(f"{self.title}: relative error after {rounds} rounds, {seeds} seed(s)", columns)
        for cell, by_rate in errors.items():
            paper = self.published[cell.heterogeneity]
            rates = f"{selected(by_rate):g}", f"{paper:g}"
            table.add(str(cell.method), f"{cell.heterogeneity:g}", *map(told, by_rate.values()), *rates)
        table.notes.append(
            "Means over seeds. A run has diverged if its error is not finite, or larger at the end than that of X = 0."
        )
        return table


def error_at_end(outcome: Outcome, rounds: int) -> float:
    """The error after the last round; nan for a run that ended before it."""
    return math.nan if outcome.failure else outcome.series[ERROR].get(rounds, math.nan)


def has_diverged(error: float) -> bool:
    """Return whether an error at the end is not finite, or above that of the start."""
    return not error <= START


def selected(errors: Errors) -> float:
    """The rate of the lowest mean error among those without a run that has diverged; nan for none."""
    stable = {rate: values for rate, values in errors.items() if not any(map(has_diverged, values))}
    return min(stable, key=lambda rate: statistics.mean(stable[rate]), default=math.nan)


def told(errors: Sequence[float]) -> str:
    """The mean error, or how many runs have diverged."""
    lost = sum(map(has_diverged, errors))
    return f"{lost} of {len(errors)} diverged" if lost else f"{statistics.mean(errors):.2e}"


TARGETS = {
    "ssf-rates": RateSearch(
        "SSF, equation (136)",
        LEARNING_RATES,
        rates=(1e-4, 1e-3, 1e-2, 1e-1),
        methods=[Method("SCAFFOLD", control) for control in CONTROLS],
    )
}
