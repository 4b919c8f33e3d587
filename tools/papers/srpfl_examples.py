"""The number of examples that a client needs: FedRep-SRPFL on linear representations of several sizes (Theorem 4.7).

The theorem has its contraction for ``m >= c max(log N, d / n_0)``, the paper's introduction ``m = O(d/N + log N)``. So
the least m is looked for by which the first stage, n_0 of N clients in a round, halves the distance from the optimum:
one of d, n_0 and N differs from case to case.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tools.papers.experiments import Laboratory, Outcome, Run, seeds_of
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantity, tabulate
from tools.papers.srpfl import CONFIGS, DISTANCE, SRPFL, START

GRID = (
    3,
    4,
    6,
    8,
    11,
    16,
    23,
    32,
    45,
    64,
    91,
    128,
    181,
)  # of m, each sqrt(2) of the one before; with k = 2 heads fit 2
ROUNDS = 80
_SEEDS = 10


@dataclass(frozen=True)
class Case:
    """Sizes of a problem.

    Attributes:
        dim: d.
        initial: n_0, participants of a round.
        num_clients: N, of which those are the fastest.
    """

    dim: int
    initial: int
    num_clients: int

    def __str__(self) -> str:
        return f"d = {self.dim}, n_0 = {self.initial}, N = {self.num_clients}"

    def run(self, examples: int, seed: int, rounds: int) -> Run:
        """A run of the first stage alone, each client with so many new examples in every round."""
        overrides: tuple[tuple[str, object], ...] = (
            ("data.init_args.num_clients", self.num_clients),
            ("data.init_args.examples_per_client", examples),
            ("data.init_args.dim", self.dim),
            ("model.init_args.dim", self.dim),
            ("trainer.participation.init_args.initial", self.initial),
            ("trainer.participation.init_args.rounds_per_stage", f"[{rounds}]"),
            ("trainer.callbacks.init_args.start", "distance"),
            ("trainer.callbacks.init_args.distance", START),
        )
        return Run(CONFIGS[SRPFL], rounds, seed, (DISTANCE,), overrides)


BASE = Case(320, 4, 64)
CASES = (
    Case(20, 4, 64),
    Case(80, 4, 64),
    BASE,
    Case(320, 16, 64),
    Case(320, 64, 64),
    Case(320, 4, 16),
    Case(320, 4, 256),
)
# Least m of one case over that of another, which the laws d / n_0 and d / N say differently.
RATIOS = {
    "d = 320 over d = 20": (BASE, Case(20, 4, 64)),
    "n_0 = 4 over n_0 = 64": (BASE, Case(320, 64, 64)),
    "N = 16 over N = 256": (Case(320, 4, 16), Case(320, 4, 256)),
}
Wanted = tuple[Case, int]


def is_halved(outcome: Outcome) -> bool:
    """Return whether the mean distance of the last quarter of the rounds is at most half of the start's."""
    distances = list(outcome.series[DISTANCE].values())
    tail = distances[-max(1, len(distances) // 4) :]
    return sum(tail) / len(tail) <= START / 2


def least(
    wanted: Sequence[Wanted], will_do: Callable[[Mapping[Wanted, int]], Mapping[Wanted, bool]]
) -> dict[Wanted, float]:
    """The smallest number of the grid that will do, by bisection; inf for none.

    Args:
        wanted: cases and seeds.
        will_do: whether a number of examples will do, for several of these at once.
    """
    bounds = {key: (-1, len(GRID)) for key in wanted}  # places in the grid: of one that will not do, and one that will
    while middles := {key: (low + high) // 2 for key, (low, high) in bounds.items() if high - low > 1}:
        tried = will_do({key: GRID[middle] for key, middle in middles.items()})
        for key, middle in middles.items():
            low, high = bounds[key]
            bounds[key] = (low, middle) if tried[key] else (middle, high)
    return {key: GRID[high] if high < len(GRID) else math.inf for key, (_, high) in bounds.items()}


@dataclass(frozen=True)
class LeastExamples:
    """The least m by d, n_0 and N.

    Attributes:
        cases: the problems.
    """

    cases: Sequence[Case] = CASES

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        count, rounds = seeds_of(options, _SEEDS), options.rounds or ROUNDS

        def will_do(examples: Mapping[Wanted, int]) -> dict[Wanted, bool]:
            runs = {(case, seed): case.run(number, seed, rounds) for (case, seed), number in examples.items()}
            found = laboratory.outcomes(runs.values())
            return {key: is_halved(found[run]) for key, run in runs.items()}

        cases = self.cases[:2] if options.quick else self.cases
        by_key = least([(case, seed) for case in cases for seed in range(count)], will_do)
        found = {case: [by_key[case, seed] for seed in range(count)] for case in cases}
        title = f"{SRPFL}: the least m by which {ROUNDS} rounds of n_0 clients halve the distance, {count} runs"
        table = tabulate(title, {"least m": Quantity({str(case): values for case, values in found.items()})}, "sizes")
        return Findings(table, numbers(found))


def numbers(found: Mapping[Case, Sequence[float]]) -> list[Number]:
    """The least m of each case by seed, and ratios of them."""
    rows = [
        Number(str(case), SRPFL, "least m", seed, value)
        for case, values in found.items()
        for seed, value in enumerate(values)
    ]
    for name, (first, second) in RATIOS.items():
        if {first, second} <= found.keys():
            pairs = zip(found[first], found[second], strict=True)
            rows += [Number("", SRPFL, f"least m, {name}", seed, a / b) for seed, (a, b) in enumerate(pairs)]
    return rows


TARGETS = {"srpfl-examples": LeastExamples()}
