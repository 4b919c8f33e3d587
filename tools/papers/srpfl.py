"""Linear representations of the SRPFL paper: simulated time of FedRep and of FedRep-SRPFL, by the number of clients."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from lfl.problems import LinearRepresentationData
from lfl.problems.doubling import DoublingPoints
from lfl.problems.linear_representation import leading_subspace, principal_distance
from tools.papers.experiments import Laboratory, Outcome, Run, seeds_of
from tools.papers.findings import Findings
from tools.papers.kept import Number
from tools.papers.summaries import three_digits
from tools.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DISTANCE, TIME = "val_distance", "sim/time"
FEDREP, SRPFL = "FedRep", "FedRep-SRPFL"
CONFIGS = {FEDREP: "linear_representation_fedrep.yaml", SRPFL: "linear_representation_srpfl.yaml"}
START = 0.8  # distance of the common start
FLOOR = 0.285  # / sqrt(n): the distance where n clients stall, which `srpfl-stalls` measures
TARGET = 1.2  # times where all clients stall: midway between that and sqrt(2), where half of them do
INITIAL = 4  # n_0
ROUNDS = {FEDREP: 80, SRPFL: 40}  # of a run; for SRPFL those of the last stage
BAD_STARTS = 2560  # / N rounds at least: Algorithm 2's start is poor, and a round cheap, where clients are few
TUNING_SEED = 1000  # of the problem whose start the stages are computed from
RESAMPLES = 400  # of the seeds, for a standard error
Seeds = slice | NDArray[np.int64]
EVERY_SEED = slice(None)


@dataclass(frozen=True)
class Scenario:
    """A start and a system.

    Attributes:
        name: start, speeds and C in short.
        start: of Orthonormalize.
        dynamic: whether speeds are drawn in every round.
        communication: C.
    """

    name: str
    start: str
    dynamic: bool
    communication: float


SIZES = (16, 64, 256, 1024)
SCENARIOS = (
    Scenario("common, dynamic, C = 0", "distance", True, 0.0),
    Scenario("common, dynamic, C = 1", "distance", True, 1.0),
    Scenario("common, fixed, C = 0", "distance", False, 0.0),
    Scenario("Algorithm 2, dynamic, C = 0", "moments", True, 0.0),
)


@dataclass(frozen=True)
class Problem:
    """A problem of the configs with N clients, its expected floor and its stages.

    Attributes:
        settings: the arguments of LinearRepresentationData.
        lr: eta.
        num_clients: N.
    """

    settings: Mapping[str, Any]
    lr: float
    num_clients: int

    @classmethod
    def of_config(cls, path: Path, num_clients: int) -> Problem:
        """Read a problem from a file of ``configs/problems/``."""
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        return cls(config["data"]["init_args"], config["model"]["init_args"]["lr"], num_clients)

    @property
    def floor(self) -> float:
        """The distance at which all N clients stall: a round contracts it by as much as its noise adds."""
        return FLOOR / math.sqrt(self.num_clients)

    @property
    def target(self) -> float:
        """The distance that the methods have to reach."""
        return TARGET * self.floor

    def data(self, seed: int) -> LinearRepresentationData:
        """The examples, heads and representation of a seed."""
        data = LinearRepresentationData(**{**self.settings, "num_clients": self.num_clients, "seed": seed})
        data.setup("fit")
        return data

    def start_distance(self, seed: int) -> float:
        """The distance of Algorithm 2's start."""
        data = self.data(seed)
        return float(principal_distance(leading_subspace(data.moments(), data.rank), data.truth))

    @cached_property
    def moments_distance(self) -> float:
        """The distance of Algorithm 2's start, on a problem that is not reported."""
        return self.start_distance(TUNING_SEED)

    def points(self, scenario: Scenario) -> DoublingPoints:
        """The stages of Lemma B.1 for the contraction and the floor of this problem."""
        return DoublingPoints(
            contraction=1 - (1 - self.lr) ** 2,
            initial=INITIAL,
            num_clients=self.num_clients,
            communication=scenario.communication,
            start=START if scenario.start == "distance" else self.moments_distance,
            first_floor=FLOOR / math.sqrt(INITIAL),
        )

    def run(self, scenario: Scenario, method: str, seed: int, rounds: int | None) -> Run:
        """One run, of ``rounds`` rounds if given."""
        overrides: list[tuple[str, object]] = [
            ("data.init_args.num_clients", self.num_clients),
            ("trainer.system.init_args.dynamic", scenario.dynamic),
            ("trainer.system.init_args.communication", scenario.communication),
            ("trainer.callbacks.init_args.start", scenario.start),
            ("trainer.callbacks.init_args.distance", START),
        ]
        needed = max(ROUNDS[method], BAD_STARTS // self.num_clients)
        if method == SRPFL:
            lengths = self.points(scenario).whole_rounds(self.target)
            needed += sum(lengths[:-1])
            overrides += [
                ("trainer.participation.init_args.initial", INITIAL),
                ("trainer.participation.init_args.rounds_per_stage", str(lengths)),
            ]
        return Run(CONFIGS[method], rounds or needed, seed, (DISTANCE, TIME), tuple(overrides))


class Curves:
    """Distances and simulated time of one method.

    A single run's distance fluctuates by an eighth about where it stalls, and dips to where more clients do. The
    geometric mean over the seeds does so less, and bad starts do not decide it.

    Args:
        outcomes: of S runs of R rounds, one a seed.

    Attributes:
        logs: logarithms of the distances after each round [S, R].
        clocks: the time then [S, R].
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.logs = np.log([list(outcome.series[DISTANCE].values()) for outcome in outcomes])
        self.clocks = np.array([list(outcome.series[TIME].values()) for outcome in outcomes])

    def distances(self, seeds: Seeds = EVERY_SEED) -> NDArray[np.float64]:
        """Geometric mean of the distances after each round [R]."""
        means: NDArray[np.float64] = np.exp(self.logs[seeds].mean(axis=0))
        return means

    def rounds(self, target: float, seeds: Seeds = EVERY_SEED) -> float:
        """The first round after which the mean distance was at most ``target``; inf for none."""
        reached = self.distances(seeds) <= target
        return int(reached.argmax()) + 1 if reached.any() else math.inf

    def seconds(self, target: float, seeds: Seeds = EVERY_SEED) -> float:
        """Mean simulated time to that round; inf for none."""
        rounds = self.rounds(target, seeds)
        return float(self.clocks[seeds, int(rounds) - 1].mean()) if math.isfinite(rounds) else math.inf


@dataclass(frozen=True)
class Comparison:
    """FedRep and FedRep-SRPFL on the same problems.

    Attributes:
        target: the distance.
        curves: by method.
    """

    target: float
    curves: Mapping[str, Curves]

    def speedup_of(self, seeds: Seeds) -> float:
        """FedRep's time to the target over FedRep-SRPFL's; nan where one of them does not reach it."""
        fedrep, srpfl = (self.curves[method].seconds(self.target, seeds) for method in (FEDREP, SRPFL))
        return fedrep / srpfl if math.isfinite(fedrep + srpfl) else math.nan

    @property
    def speedup(self) -> float:
        """The speed-up over all seeds."""
        return self.speedup_of(EVERY_SEED)

    @property
    def runs(self) -> int:
        """The number of seeds."""
        return len(self.curves[FEDREP].clocks)

    @cached_property
    def error(self) -> float:
        """Standard error of the speed-up, by bootstrap over the seeds."""
        return bootstrap_error(self.speedup_of, self.runs)


def bootstrap_error(statistic: Callable[[Seeds], float], runs: int) -> float:
    """Standard error of a statistic of some of ``runs`` seeds, by bootstrap over them."""
    draws = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs))
    return float(np.std([statistic(row) for row in draws]))


Results = Mapping[Scenario, Mapping[int, Comparison]]


@dataclass(frozen=True)
class SpeedupFigure:
    """Speed-ups to reproduce.

    Attributes:
        title: what it is.
        sizes: numbers of clients.
        scenarios: the starts and systems.
        seeds: runs of every case.
    """

    title: str
    sizes: Sequence[int] = SIZES
    scenarios: Sequence[Scenario] = SCENARIOS
    seeds: int = 20

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        seeds, rounds = seeds_of(options, self.seeds), options.rounds or (70 if options.quick else None)
        config = laboratory.configs / CONFIGS[SRPFL]
        problems = [Problem.of_config(config, size) for size in (self.sizes[:2] if options.quick else self.sizes)]
        runs = {
            (scenario, problem.num_clients, method): [
                problem.run(scenario, method, seed, rounds) for seed in range(seeds)
            ]
            for scenario in self.scenarios
            for problem in problems
            for method in CONFIGS
        }
        curves = {case: Curves(outcomes) for case, outcomes in laboratory.by_group(runs).items()}
        results = {
            scenario: {
                problem.num_clients: Comparison(
                    problem.target, {method: curves[scenario, problem.num_clients, method] for method in CONFIGS}
                )
                for problem in problems
            }
            for scenario in self.scenarios
        }
        theory = {s: {p.num_clients: p.points(s).speedup(p.target) for p in problems} for s in self.scenarios}
        table = self.tabulate(results, theory, problems, seeds)
        return Findings(table, numbers(results), lambda path: plot(results, theory, path))

    def tabulate(
        self,
        results: Results,
        theory: Mapping[Scenario, Mapping[int, float]],
        problems: Sequence[Problem],
        seeds: int,
    ) -> Table:
        """A line for each scenario and number of clients."""
        columns = ["start, speeds, C", "N", "target", "rounds", "time", "speed-up", "lemma"]
        table = Table(f"{self.title}: FedRep → {SRPFL} until a distance, {seeds} runs", columns)
        for scenario, by_size in results.items():
            for size, found in by_size.items():
                pairs = [found.curves[FEDREP], found.curves[SRPFL]]
                rounds = " → ".join(three_digits(curves.rounds(found.target)) for curves in pairs)
                times = " → ".join(three_digits(curves.seconds(found.target)) for curves in pairs)
                ours = f"{three_digits(found.speedup)} ± {found.error:.2f}"
                target = f"{found.target:.4f}"
                table.add(scenario.name, str(size), target, rounds, times, ours, three_digits(theory[scenario][size]))
        first = problems[0]
        dim, rank, count = (first.settings[name] for name in ("dim", "rank", "examples_per_client"))
        table.notes += [
            f"d = {dim}, k = {rank}, {count} new examples a client and round, noise {first.settings['noise']:g}, "
            f"eta = {first.lr:g}, n_0 = {INITIAL}. The common start is at {START:g}; the target is {TARGET:g} times "
            "the distance where all N clients stall. Rounds until the geometric mean of the runs' distances is there, "
            "and their mean simulated time; its unit is what a client takes on average. "
            "- is not reached, ± a standard error.",
            "Stages are as long as Lemma B.1 says for this problem's contraction and floors. 'lemma': the speed-up it "
            "expects there, from dynamic speeds and from errors that add up linearly.",
        ]
        return table


def numbers(results: Results) -> list[Number]:
    """Speed-ups by scenario and number of clients, and how well two laws fit their growth."""
    found = []
    for scenario, by_size in results.items():
        for size, comparison in by_size.items():
            deviation = comparison.error * math.sqrt(comparison.runs)
            said = (scenario.name, f"N = {size}", "speed-up", None, comparison.speedup)
            found.append(Number(*said, deviation, comparison.runs))
        found += [
            Number(scenario.name, law, quantity, None, value)
            for law, fitted in growth(by_size).items()
            for quantity, value in fitted.items()
        ]
    return found


def growth(by_size: Mapping[int, Comparison]) -> dict[str, dict[str, float]]:
    """Fit ``alpha + beta log2 N`` to speed-ups, and a power of N, which has as many parameters.

    Returns:
        By law its slope or exponent, and by how many standard errors it misses a speed-up at most; empty for fewer
        than three numbers of clients, and where a speed-up or its error is not known.
    """
    sizes = np.log2(np.array(list(by_size), dtype=float))
    means = np.array([found.speedup for found in by_size.values()])
    errors = np.array([found.error for found in by_size.values()])
    if len(sizes) < 3 or not (np.isfinite(means + errors) & (errors > 0)).all():
        return {}
    slope, logarithmic = misfit(sizes, means, errors)
    power, polynomial = misfit(sizes, np.log(means), errors / means)
    return {
        "log N": {"a doubling": slope, "standard error": slope_error(sizes, errors), "misfit": logarithmic},
        "power of N": {"exponent": power / math.log(2), "misfit": polynomial},
    }


def misfit(x: NDArray[np.float64], y: NDArray[np.float64], errors: NDArray[np.float64]) -> tuple[float, float]:
    """The slope of the weighted straight line, and its largest residual in standard errors."""
    slope, offset = np.polyfit(x, y, 1, w=1 / errors)
    return float(slope), float(np.abs((y - slope * x - offset) / errors).max())


def slope_error(x: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """Standard error of the slope of the weighted straight line."""
    weights = errors**-2
    mean = (weights * x).sum() / weights.sum()
    return float((weights * (x - mean) ** 2).sum() ** -0.5)


def plot(results: Results, theory: Mapping[Scenario, Mapping[int, float]], path: Path) -> None:
    """Draw the distances against time at the largest N (left) and the speed-ups against N (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    scenario, by_size = next(iter(results.items()))
    size, found = list(by_size.items())[-1]
    for method, curves in found.curves.items():
        left.plot(curves.clocks.mean(axis=0), curves.distances(), label=method)
    left.axhline(found.target, color="gray", linestyle=":", label="target")
    left.set(title=f"{scenario.name}, N = {size}", xlabel="simulated time", ylabel="distance", yscale="log")
    draw_speedups(right, results, theory)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=150)


def draw_speedups(axes: Axes, results: Results, theory: Mapping[Scenario, Mapping[int, float]]) -> None:
    """Draw means with standard errors; dashed is Lemma B.1's expectation, which exists for dynamic speeds only."""
    for position, (scenario, by_size) in enumerate(results.items()):
        sizes, colour = list(by_size), f"C{position}"
        means, errors = zip(*((found.speedup, found.error) for found in by_size.values()), strict=True)
        axes.errorbar(sizes, means, errors, color=colour, marker="o", capsize=3, label=scenario.name)
        if scenario.dynamic:
            axes.plot(sizes, list(theory[scenario].values()), color=colour, linestyle="--", linewidth=0.8)
    axes.set(title="speed-up (dashed: Lemma B.1)", xlabel="clients N", ylabel="FedRep's time over SRPFL's")
    axes.set_xscale("log", base=2)


TARGETS = {"srpfl-speedup": SpeedupFigure("SRPFL, section 4")}
