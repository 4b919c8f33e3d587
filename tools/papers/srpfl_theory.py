"""The SRPFL paper's theory of linear representations: targets, contraction, where runs stall, and the start.

The speed-up by the number of clients is in ``srpfl.py``. Here, all runs are from the common start, with dynamic speeds
and C = 0, and runs of one study that another one has made are not made again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lfl.problems.doubling import DoublingPoints
from tools.papers.experiments import Laboratory, Outcome, Run, seeds_of
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantity, tabulate
from tools.papers.srpfl import (
    BAD_STARTS,
    CONFIGS,
    DISTANCE,
    EVERY_SEED,
    FEDREP,
    FLOOR,
    INITIAL,
    SCENARIOS,
    SIZES,
    SRPFL,
    START,
    Comparison,
    Curves,
    Problem,
    Seeds,
    bootstrap_error,
)
from tools.papers.summaries import three_digits
from tools.table import Table

COMMON = SCENARIOS[0]
ROUNDS = 160  # of FedRep, and of FedRep-SRPFL's last stage
RATIOS = (1.02, 1.05, 1.1, 1.2, 1.3, 1.4)  # of targets to where all clients stall; half of them stall at sqrt(2)
NOISES = (1.0, 0.5, 0.0)
CLEAR = 3.0  # times the stall: contraction is read above it, where what noise adds is small
THEOREM = "Theorem 4.7"
_SEEDS, _QUICK_SIZES = 20, 2
Values = NDArray[np.float64]


def problems(laboratory: Laboratory, sizes: Sequence[int], quick: bool) -> list[Problem]:
    """The problem of the configs for each number of clients; the first of them for a look."""
    path = laboratory.configs / CONFIGS[SRPFL]
    return [Problem.of_config(path, size) for size in (sizes[:_QUICK_SIZES] if quick else sizes)]


def fedrep(problem: Problem, seed: int, rounds: int, noise: float | None = None) -> Run:
    """All clients in every round, with a noise of its own if given."""
    run = problem.run(COMMON, FEDREP, seed, rounds)
    if noise in (None, problem.settings["noise"]):
        return run
    return replace(run, overrides=(*run.overrides, ("data.init_args.noise", noise)))


def theorem(problem: Problem, seed: int) -> DoublingPoints:
    """The theorem's contraction and floor of a seed, ``a = eta E_0 s^2 / 2``.

    E_0 is one less the square of the common start's distance, s the least singular value of the clients' true heads
    over sqrt(N).
    """
    heads = problem.data(seed).heads.numpy() / math.sqrt(problem.num_clients)
    least = float(np.linalg.svd(heads, compute_uv=False)[-1])
    return DoublingPoints(problem.lr * (1 - START**2) * least**2 / 2, INITIAL, problem.num_clients)


def distances(outcome: Outcome) -> Values:
    """The distances of a run after each round [R]."""
    return np.array(list(outcome.series[DISTANCE].values()))


def last_half(values: Values) -> Values:
    """The second half of the rounds."""
    return values[len(values) // 2 :]


def contraction(excess: Values) -> float:
    """The factor a round by which positive numbers fall: of the straight line through their logarithms; nan for two."""
    if len(excess) < 3:
        return math.nan
    return math.exp(np.polyfit(np.arange(len(excess)), np.log(excess), 1)[0])


def halves(run: Values) -> tuple[float, float]:
    """The contraction of the distance above the stall, in the two halves of the rounds before it is near that.

    Args:
        run: distances after each round; the mean of the last half of them is where it stalls.
    """
    stall = float(last_half(run).mean())
    clear = run[: int((run < CLEAR * stall).argmax())] - stall
    middle = len(clear) // 2
    return contraction(clear[:middle]), contraction(clear[middle:])


@dataclass(frozen=True)
class Targets:
    """Speed-ups at several targets, of the same runs.

    Attributes:
        sizes: numbers of clients.
    """

    sizes: Sequence[int] = (64, 256)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        count = seeds_of(options, _SEEDS)
        columns = ["N", "target / stall", "rounds", "time", "speed-up", "lemma"]
        table = Table(f"SRPFL, section 4: FedRep → {SRPFL} until a distance, {count} runs", columns)
        numbers = []
        for problem in problems(laboratory, self.sizes, options.quick):
            runs = {name: [self.run(problem, name, seed, options.rounds) for seed in range(count)] for name in CONFIGS}
            found = laboratory.by_group(runs)
            by_ratio = {
                ratio: Comparison(ratio * problem.floor, {method: Curves(group) for method, group in found.items()})
                for ratio in RATIOS
            }
            for ratio, comparison in by_ratio.items():
                self.add_line(table, problem, ratio, comparison)
            numbers += self.numbers(problem.num_clients, list(by_ratio.values()))
        table.notes.append(
            f"From a common start at {START:g}, dynamic speeds, C = 0, n_0 = {INITIAL}. Each run is read at all "
            "targets: the stages before the last are the same for all. '-' was not reached, ± a standard error; "
            "'lemma' is the speed-up that Lemma B.1 expects."
        )
        return Findings(table, numbers)

    @staticmethod
    def run(problem: Problem, method: str, seed: int, rounds: int | None) -> Run:
        """One run, whose last stage is long enough for the nearest target."""
        stages = problem.points(COMMON).whole_rounds(problem.target)[:-1] if method == SRPFL else []
        return problem.run(COMMON, method, seed, rounds or sum(stages) + ROUNDS)

    @staticmethod
    def add_line(table: Table, problem: Problem, ratio: float, found: Comparison) -> None:
        """Add the line of a target."""
        pairs = [found.curves[FEDREP], found.curves[SRPFL]]
        table.add(
            str(problem.num_clients),
            f"{ratio:g}",
            " → ".join(three_digits(curves.rounds(found.target)) for curves in pairs),
            " → ".join(three_digits(curves.seconds(found.target)) for curves in pairs),
            f"{three_digits(found.speedup)} ± {found.error:.2f}",
            three_digits(problem.points(COMMON).speedup(found.target)),
        )

    @staticmethod
    def numbers(size: int, comparisons: Sequence[Comparison]) -> list[Number]:
        """Speed-ups by target, and how much they grow from one to the next tenth of the stall."""
        setting, runs = f"N = {size}", comparisons[0].runs

        def growth(seeds: Seeds) -> float:
            """Slope of the straight line through the speed-ups; nan where one is not known."""
            return float(np.polyfit(RATIOS, [found.speedup_of(seeds) for found in comparisons], 1)[0]) / 10

        told = [
            (f"speed-up at {ratio:g}", found.speedup, found.error)
            for ratio, found in zip(RATIOS, comparisons, strict=True)
        ]
        told.append(("growth of the speed-up", growth(EVERY_SEED), bootstrap_error(growth, runs)))
        return [Number(setting, SRPFL, name, None, value, error * math.sqrt(runs), runs) for name, value, error in told]


@dataclass(frozen=True)
class Contraction:
    """The contraction a round, beside that of Theorem 4.7.

    Attributes:
        sizes: numbers of clients.
    """

    sizes: Sequence[int] = (64, 256, 1024)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        count = seeds_of(options, _SEEDS)
        cases = problems(laboratory, self.sizes, options.quick)
        runs = {p.num_clients: [fedrep(p, seed, options.rounds or ROUNDS) for seed in range(count)] for p in cases}
        found = laboratory.by_group(runs)
        names = ("contraction, first half", "contraction, second half", "contraction")
        values: dict[str, dict[str, list[float]]] = {name: {} for name in (*names, THEOREM)}
        for problem in cases:
            pairs = [halves(distances(outcome)) for outcome in found[problem.num_clients]]
            setting = f"N = {problem.num_clients}"
            first, second = ([pair[half] for pair in pairs] for half in (0, 1))
            slower = [float(np.max(pair)) for pair in pairs]
            bounds = [theorem(problem, seed).factor for seed in range(count)]
            for name, column in zip(values, (first, second, slower, bounds), strict=True):
                values[name][setting] = column
        table = tabulate(
            f"SRPFL, Theorem 4.7: the factor of the distance above the stall in a round, {count} runs",
            {name: Quantity(columns, 4) for name, columns in values.items()},
            "clients",
        )
        table.notes.append(
            f"From a distance of {START:g} to {CLEAR:g} times the stall, in the two halves of these rounds; "
            f"'contraction' is the slower of them. {THEOREM} has sqrt(1 - a) with the least singular value of each "
            "problem's heads."
        )
        numbers = [
            Number(setting, THEOREM if name == THEOREM else FEDREP, names[-1] if name == THEOREM else name, seed, value)
            for name, columns in values.items()
            for setting, column in columns.items()
            for seed, value in enumerate(column)
        ]
        return Findings(table, numbers)


@dataclass(frozen=True)
class Stalls:
    """The distances where runs stall, by the number of clients and the noise.

    Attributes:
        sizes: numbers of clients, all of them in every round.
    """

    sizes: Sequence[int] = (INITIAL, *SIZES)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        count = seeds_of(options, _SEEDS)
        cases = problems(laboratory, self.sizes, options.quick)
        found = laboratory.by_group(
            {
                (noise, problem.num_clients): [
                    fedrep(problem, seed, options.rounds or self.rounds(problem, noise), noise) for seed in range(count)
                ]
                for noise in NOISES
                for problem in cases
            }
        )
        tails = {case: [last_half(distances(outcome)) for outcome in group] for case, group in found.items()}
        numbers = [
            Number(f"noise {noise:g}, n = {size}", FEDREP, name, seed, value)
            for (noise, size), group in tails.items()
            for seed, tail in enumerate(group)
            for name, value in (("distance", float(tail.mean())), ("contraction, last half", contraction(tail)))
        ]
        numbers += [
            Number(f"noise {NOISES[0]:g}, n = {problem.num_clients}", THEOREM, "distance", seed, value)
            for problem in cases
            for seed, value in enumerate(theorem(problem, seed).floors[-1] for seed in range(count))
        ]
        for noise in filter(None, NOISES):
            numbers += laws(
                noise, {p.num_clients: [float(tail.mean()) for tail in tails[noise, p.num_clients]] for p in cases}
            )
        return Findings(self.tabulate(numbers, count), numbers)

    @staticmethod
    def rounds(problem: Problem, noise: float) -> int:
        """Enough to stall: few clients, whose heads may be nearly parallel, need more; without noise none stall."""
        return max(ROUNDS, BAD_STARTS // problem.num_clients) if noise else ROUNDS

    @staticmethod
    def tabulate(numbers: Sequence[Number], count: int) -> Table:
        """A line for each noise and number of clients, then one for each noise."""
        columns = {
            "distance": (FEDREP, "distance", 4),
            "inequality (11)": (THEOREM, "distance", 3),
            "contraction, last half": (FEDREP, "contraction, last half", 3),
            "power of n": (FEDREP, "power of n", 3),
            "times sqrt(n)": (FEDREP, "distance times sqrt(n)", 3),
        }
        quantities = {}
        for column, (method, quantity, digits) in columns.items():
            values: dict[str, list[float]] = {}
            for row in numbers:
                if (row.method, row.quantity) == (method, quantity):
                    values.setdefault(row.setting, []).append(row.value)
            quantities[column] = Quantity(values, digits)
        table = tabulate(
            f"SRPFL, section 4: the mean distance of the last half of the rounds, {count} runs", quantities
        )
        table.notes.append(
            f"All n clients in every round, from a start at {START:g}. A run has stalled where its contraction is 1. "
            f"'times sqrt(n)' at noise 1 is what srpfl-speedup has as {FLOOR:g}."
        )
        return table


def laws(noise: float, stalls: dict[int, list[float]]) -> list[Number]:
    """The power of n with which the distances fall, and their mean over all n when multiplied by sqrt(n), by seed.

    Args:
        noise: of the runs.
        stalls: distances by the number of clients, each by seed.
    """
    sizes = np.array(list(stalls), dtype=float)
    by_seed = np.array(list(stalls.values())).T
    found = []
    for seed, row in enumerate(by_seed):
        power = float(np.polyfit(np.log(sizes), np.log(row), 1)[0])
        factor = float((row * np.sqrt(sizes)).mean())
        for name, value in (("power of n", power), ("distance times sqrt(n)", factor)):
            found.append(Number(f"noise {noise:g}", FEDREP, name, seed, value))
    return found


@dataclass(frozen=True)
class Starts:
    """The distances of Algorithm 2's start, from one batch of all clients.

    Attributes:
        sizes: numbers of clients.
    """

    sizes: Sequence[int] = SIZES

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Draw the problems; give what was found in them. There are no runs."""
        count = seeds_of(options, _SEEDS)
        found = {
            f"N = {problem.num_clients}": [problem.start_distance(seed) for seed in range(count)]
            for problem in problems(laboratory, self.sizes, options.quick)
        }
        largest = {setting: [max(values)] for setting, values in found.items()}
        quantities = {"distance": Quantity(found, 3), "largest": Quantity(largest, 3)}
        table = tabulate(f"SRPFL, Algorithm 2: the start's distance in {count} problems", quantities, "clients")
        name = "Algorithm 2"
        numbers = [
            Number(setting, name, "distance", seed, value)
            for setting, values in found.items()
            for seed, value in enumerate(values)
        ]
        numbers += [Number(setting, name, "largest distance", None, value) for setting, (value,) in largest.items()]
        return Findings(table, numbers)


TARGETS: Mapping[str, Targets | Contraction | Stalls | Starts] = {
    "srpfl-targets": Targets(),
    "srpfl-contraction": Contraction(),
    "srpfl-stalls": Stalls(),
    "srpfl-starts": Starts(),
}
