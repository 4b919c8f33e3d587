"""Robust regression of the FL-SSGD paper: uplink time until the gradient is small, with tuned step sizes."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.papers.experiments import Laboratory, Outcome, Run, seeds_of
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantity, numbers_of
from tools.papers.study import report_runs
from tools.papers.summaries import three_digits
from tools.papers.verdicts import short
from tools.table import Table

NORM, LOSS, TIME = "val_relative_gradient_norm", "val_loss", "sim/uplink_time"
BYTES = "comm/total_up_bytes"
LEVELS = (0.4, 0.3, 0.2, 0.1)
LOSS_LIMIT = 0.4  # 0.26 at the start; beyond it the bounded loss is flat, and its gradient small for nothing
RATES = tuple(400 / 2**k for k in range(14))
_STEPS = (12.5, 6.25, 3.125)  # the tuned ones of those that the paper says are fast
_ARGUMENTS = "trainer.callbacks.init_args"
_INDEX_BITS, _FLOAT_BITS = 10, 64  # of one of 1,000 coordinates
_FREE = _FLOAT_BITS / (_FLOAT_BITS + _INDEX_BITS)


@dataclass(frozen=True)
class Method:
    """A method of the figures.

    Attributes:
        name: of its line.
        config: a file of ``configs/problems/``.
        sizes: the arguments that say how many coordinates are sent, as parts of that number; none: always all.
        is_whole: whether they must be ints.
    """

    name: str
    config: str
    sizes: tuple[tuple[str, float], ...] = ()
    is_whole: bool = False

    def overrides(self, coordinates: int | None) -> list[tuple[str, object]]:
        """Settings that make a client send ``coordinates`` in a round; none are changed for None."""
        if coordinates is None:
            return []
        kind = int if self.is_whole else float
        return [(f"{_ARGUMENTS}.{name}", kind(share * coordinates)) for name, share in self.sizes]


FEDAVG = Method("FedAvg", "robust_regression_fedavg.yaml")
SSGD = Method("FL-SSGD", "robust_regression_fl_ssgd.yaml", (("l", 1.0),))
SSVRG = Method("FL-SSVRG", "robust_regression_fl_ssvrg.yaml", (("l", 0.5), ("l_i", 0.5)))
TOPK = Method("Top-k EF", "robust_regression_topk.yaml", (("k", 1.0),), is_whole=True)
SNAG = Method("S-SNAG-EF", "robust_regression_s_snag_ef.yaml", (("k", 1.0),), is_whole=True)
SEQUENCES = Method("S-SNAG-EF, sequences", "robust_regression_s_snag_ef_sequences.yaml", (("k", 1.0),), is_whole=True)
METHODS = (FEDAVG, SSGD, SSVRG, TOPK, SNAG, SEQUENCES)
INDICES_FREE = f"{TOPK.name}, indices free"


@dataclass(frozen=True)
class Case:
    """A method and how many coordinates a client sends; None for the numbers in its file."""

    method: Method
    coordinates: int | None = None


def crossing(outcome: Outcome, level: float) -> int | None:
    """The first round after which the relative norm of the gradient was at most ``level``."""
    rows = outcome.series[NORM].items()
    return next((n for n, value in rows if value <= level and outcome.series[LOSS][n] <= LOSS_LIMIT), None)


@dataclass(frozen=True, order=True)
class Score:
    """The score of a step size; less is better.

    Attributes:
        unreached: levels that not all runs reached.
        rounds: to the hardest of the others, the mean.
    """

    unreached: int
    rounds: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Score:
        """Score a step size by its runs."""
        score = cls(len(LEVELS), math.inf)
        for position, level in enumerate(LEVELS, 1):
            rounds = [found for o in outcomes if (found := crossing(o, level)) is not None]
            if len(rounds) < len(outcomes):
                break
            score = cls(len(LEVELS) - position, statistics.mean(rounds))
        return score


@dataclass
class Search:
    """Tries step sizes from the largest on, until they are too small.

    That is when one is no better than the best so far, which has reached every level; or, as smaller steps may reach
    lower levels more slowly, when one misses a level that the best has reached.

    Attributes:
        rates: descending.
        cap: rounds of a run.
        scores: of the rates that were tried.
    """

    rates: Sequence[float]
    cap: int
    scores: dict[float, Score] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The best rate of those tried."""
        return min(self.scores, key=lambda rate: self.scores[rate])

    @property
    def next_rate(self) -> float | None:
        """The rate to try next; None when the search is over."""
        tried = list(self.scores)
        if tried and tried[-1] != self.best:
            best, last = self.scores[self.best], self.scores[tried[-1]]
            if not best.unreached or last.unreached > best.unreached:
                return None
        return self.rates[len(tried)] if len(tried) < len(self.rates) else None

    @property
    def next_rounds(self) -> int:
        """Rounds of the next run: half as many again as the best takes, where that reached every level."""
        best = self.scores[self.best] if self.scores else None
        return min(self.cap, math.ceil(1.5 * best.rounds)) if best and not best.unreached else self.cap


class Times:
    """Seconds and rounds of all runs to every level.

    Args:
        outcomes: of every case, one a seed.
    """

    def __init__(self, outcomes: Mapping[Case, Sequence[Outcome]]) -> None:
        self.outcomes = outcomes

    def seconds(self, case: Case, level: float) -> list[float]:
        """Uplink time, one a seed; inf where the level was not reached."""
        return [math.inf if (n := crossing(o, level)) is None else o.series[TIME][n] for o in self.outcomes[case]]

    def bits(self, case: Case, level: float) -> float:
        """The median of what all clients sent, in bits."""
        sent = [(crossing(outcome, level), outcome.series[BYTES]) for outcome in self.outcomes[case]]
        return statistics.median(math.inf if n is None else 8 * series[n] for n, series in sent)

    def median(self, case: Case, level: float) -> float:
        """Median of the uplink time over seeds."""
        return statistics.median(self.seconds(case, level))

    def rounds(self, case: Case, level: float) -> float:
        """The median number of rounds."""
        return statistics.median(self.counts(case, level))

    def counts(self, case: Case, level: float) -> list[float]:
        """Rounds, one number a seed; inf where the level was not reached."""
        return [math.inf if (n := crossing(o, level)) is None else n for o in self.outcomes[case]]

    @property
    def methods(self) -> list[Method]:
        """The methods of all cases."""
        return list(dict.fromkeys(case.method for case in self.outcomes))

    def numbers(self, sizes: Sequence[int | None]) -> list[Number]:
        """Uplink time and rounds to all levels, for each number of coordinates."""
        found = []
        for size in sizes:
            cases = {method.name: case_of(method, size) for method in self.methods}
            quantities = {
                f"s to {level:g}": Quantity({name: self.seconds(case, level) for name, case in cases.items()})
                for level in LEVELS
            }
            found += numbers_of(quantities, sharing(size))
            if TOPK in self.methods:  # a coordinate of the paper is so long that its index costs nothing beside it
                free = [_FREE * value for value in self.seconds(cases[TOPK.name], LEVELS[-1])]
                found += numbers_of({f"s to {LEVELS[-1]:g}": Quantity({INDICES_FREE: free})}, sharing(size))
            counts = {name: self.counts(case, LEVELS[-1]) for name, case in cases.items()}
            found += numbers_of({f"rounds to {LEVELS[-1]:g}": Quantity(counts)}, sharing(size))
        return found


@dataclass(frozen=True)
class TimeFigure:
    """A figure of uplink times to reproduce.

    Attributes:
        title: what it is.
        sizes: numbers of coordinates that are sent; None for those in the files.
        rounds: of a run, at most, by the number of coordinates.
        tuning_seeds: of the runs that choose step sizes.
        overrides: what else is changed in the files.
        quick_sizes: those of a quick look.
        seeds: runs of every case.
        fewer: runs of those methods that the paper shows no sample paths of.
        methods: that are run.
        rates: step sizes to choose from, descending; one is taken by all.
    """

    title: str
    sizes: Sequence[int | None]
    rounds: Mapping[int | None, int]
    tuning_seeds: Sequence[int]
    overrides: tuple[tuple[str, object], ...] = ()
    quick_sizes: Sequence[int | None] = (None,)
    seeds: int = 10
    fewer: Mapping[Method, int] = field(default_factory=dict)
    methods: Sequence[Method] = METHODS
    rates: Sequence[float] = RATES

    def run(self, case: Case, rate: float, seed: int, rounds: int) -> Run:
        """One run, which ends when the last level is reached."""
        overrides: list[tuple[str, object]] = [
            ("model.init_args.lr", rate),
            *self.overrides,
            *case.method.overrides(case.coordinates),
            ("trainer.callbacks+", "tools.papers.stopping.GradientNormEarlyStopping"),
            (f"{_ARGUMENTS}.norm", LEVELS[-1]),
            (f"{_ARGUMENTS}.loss", LOSS_LIMIT),
        ]
        return Run(case.method.config, rounds, seed, (NORM, LOSS, TIME, BYTES), tuple(overrides))

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Tune and make the runs; give what they have found.

        Its figures are reports, one for each number of coordinates, in folders that begin with the figure's name.
        """
        quick, seeds = options.quick, seeds_of(options, self.seeds, quick=2)
        sizes = self.quick_sizes if quick else self.sizes
        cases = list(dict.fromkeys(case_of(method, size) for size in sizes for method in self.methods))
        caps = {case: options.rounds or (60 if quick else self.rounds[case.coordinates]) for case in cases}
        searches = {case: Search((25.0,) if quick else self.rates, caps[case]) for case in cases}
        self.tune(laboratory, searches, self.tuning_seeds[:1] if quick else self.tuning_seeds)
        rates = {case: search.best for case, search in searches.items()}
        counts = {case: min(seeds, self.fewer.get(case.method, seeds)) for case in cases}
        runs = {case: [self.run(case, rates[case], seed, caps[case]) for seed in range(counts[case])] for case in cases}
        times = Times(laboratory.by_group(runs))

        def report(figure: Path) -> None:
            for size in sizes:
                self.report(figure.stem, size, laboratory, runs)

        return Findings(self.tabulate(times, rates, caps), times.numbers(sizes), report)

    def report(self, name: str, size: int | None, laboratory: Laboratory, runs: Mapping[Case, Sequence[Run]]) -> Path:
        """Make the report of all methods with one number of coordinates."""
        by_method = {method.name: runs[case_of(method, size)] for method in self.methods}
        targets = [option for level in LEVELS for option in ("--target", f"{NORM}<={level:g}")]
        looks = ["--metric", NORM, "--x", "sim", "--log", "xy", *targets]
        return report_runs(name if size is None else f"{name}-{size}", laboratory, by_method, looks)

    def tune(self, laboratory: Laboratory, searches: Mapping[Case, Search], seeds: Sequence[int]) -> None:
        """Run all searches to their ends, a step of each at a time."""
        while steps := {case: rate for case, search in searches.items() if (rate := search.next_rate) is not None}:
            runs = {
                case: [self.run(case, rate, seed, searches[case].next_rounds) for seed in seeds]
                for case, rate in steps.items()
            }
            found = laboratory.outcomes(run for group in runs.values() for run in group)
            for case, rate in steps.items():
                searches[case].scores[rate] = Score.of([found[run] for run in runs[case]])

    def tabulate(self, times: Times, rates: Mapping[Case, float], caps: Mapping[Case, int]) -> Table:
        """A line for each case."""
        runs = {case: len(outcomes) for case, outcomes in times.outcomes.items()}
        most = max(runs.values())
        limits = " or ".join(f"{cap:,}" for cap in sorted(set(caps.values())))
        columns = ["method", "sent", "lr", *(f"to {level:g}" for level in LEVELS), f"rounds to {LEVELS[-1]:g}"]
        columns += [f"Mbit to {level:g}" for level in LEVELS]
        table = Table(f"{self.title}: simulated uplink time, 1e6 s, {most} runs", columns)
        for case, rate in rates.items():
            sent = "all" if case.method is FEDAVG else f"{case.coordinates or 'by rate'}"
            steps = told(times.rounds(case, LEVELS[-1]))
            cells = [spread(times.seconds(case, level)) for level in LEVELS]
            megabits = [times.bits(case, level) / 1e6 for level in LEVELS]
            table.add(case.method.name, sent, f"{rate:g}", *cells, steps, *map(told, megabits))
            if case.method is TOPK:
                cells = [spread([_FREE * value for value in times.seconds(case, level)]) for level in LEVELS]
                free = [told(_FREE * value) for value in megabits]
                table.add(INDICES_FREE, sent, f"{rate:g}", *cells, steps, *free)
        for count in sorted(set(runs.values()) - {most}):
            names = dict.fromkeys(case.method.name for case, own in runs.items() if own == count)
            table.notes.append(f"Of {', '.join(names)}: {count} runs.")
        table.notes += [
            f"Median (quartiles) of the time to a relative gradient norm, and the median of the bits that all devices "
            f"sent (64 a coordinate); 'not reached' within {limits} rounds by "
            "half of the runs. Every method's step size was tuned for the last level in the same way, on other seeds. "
            "Three examples a device and round, which is what FL-SSVRG takes on average.",
            "The paper gives no numbers. Its coordinates have 1,000 bits; ours have 64 at 64/1000 of the rate, and "
            "Top-k pays for indices of 10 bits, which the line 'indices free' leaves out. S-SNAG-EF is a "
            "reconstruction: random-k with error feedback under Nesterov momentum at the server, or, in the last line, "
            "under its three sequences.",
        ]
        return table


def sharing(size: int | None) -> str:
    """The name of a setting, by what the uplink shares."""
    return "time sharing" if size is None else f"{size} coordinates"


def case_of(method: Method, size: int | None) -> Case:
    """The case of a method and a size; FedAvg sends all coordinates at every size."""
    return Case(method, size if method.sizes else None)


def told(value: float) -> str:
    """A number with three digits, or that it was not reached."""
    return short(value) if math.isfinite(value) else "not reached"


def spread(seconds: Sequence[float]) -> str:
    """Median and quartiles, in 1e6 s."""
    median = statistics.median(seconds)
    if not math.isfinite(median):
        return "not reached"
    values = sorted(seconds)
    quartiles = (values[round(share * (len(values) - 1))] for share in (0.25, 0.75))
    middle, low, high = (three_digits(value / 1e6) for value in (median, *quartiles))
    return f"{middle} ({low} to {high})"


def time_sharing(title: str, seeds: int = 10, **changed: Any) -> TimeFigure:
    """The setting of Figure 2, with something changed."""
    return TimeFigure(f"FL-SSGD, {title} (time sharing)", (None,), {None: 8000}, (1000, 1001), seeds=seeds, **changed)


_SUBSPACES = (FEDAVG, SSGD, SSVRG, TOPK)
TARGETS = {
    "ssgd-fig2": time_sharing("Fig. 2", seeds=100, fewer={SNAG: 10, SEQUENCES: 10}),
    **{f"ssgd-step-{rate:g}": time_sharing(f"Fig. 2a, a step of {rate:g} for all", rates=(rate,)) for rate in _STEPS},
    # Other readings of the paper's problem.
    "ssgd-squared": time_sharing(
        "the loss squared", methods=_SUBSPACES, overrides=(("model.init_args.squared", True),)
    ),
    "ssgd-std": time_sharing(
        "noise by standard deviations", methods=_SUBSPACES, overrides=(("data.init_args.noise", "std"),)
    ),
    "ssgd-fig3": TimeFigure(
        "FL-SSGD, Fig. 3 (channel sharing)",
        (16, 40, 200, 1000),
        {16: 30_000, 40: 30_000, 200: 8000, 1000: 8000, None: 8000},  # None: FedAvg
        (1000,),
        overrides=(
            ("trainer.system", "lfl.system.ChannelSharing"),
            ("trainer.system.init_args.capacity", 64.0),  # 1,000 bit/s, at 64 bits for 1,000
        ),
        quick_sizes=(40,),
    ),
}
