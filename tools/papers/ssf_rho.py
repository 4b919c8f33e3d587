"""SSF's rate against the share rho = r/d of the directions that a round moves (section 4.8 of its paper).

The paper's bound is that of SCAFFOLD with a penalty of 1/rho in its dominant term. So rounds to a squared gradient norm
without noise, and the squared norm at the end of long runs with noise, are told times rho, as multiples of those of the
whole space, r = d, with the same seed: 1 if the penalty is 1/rho, and less if it is smaller.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.papers.experiments import Laboratory, Outcome, Run, extent
from tools.papers.findings import Findings
from tools.papers.gradient_norm import SQUARE
from tools.papers.kept import Number, Quantity, numbers_of
from tools.papers.ssf import LEARNING_RATES, WHOLE_BATCHES, Method
from tools.papers.verdicts import short
from tools.table import Table

DIM = 100
LEVELS = (1e-2, 1e-4)  # of the squared gradient norm, as multiples of the first
SSF = Method("SSF", "increment")  # where all clients take part the readings of c are one
_ARGUMENTS = "trainer.callbacks.init_args"
_EVERY = 10  # rounds between the norms of a run with noise, whose end alone counts


@dataclass(frozen=True)
class Times:
    """A number of every rank, and what it is times rho against the whole space.

    Attributes:
        by_rank: the number of each seed; inf where something was never reached.
    """

    by_rank: Mapping[int, Sequence[float]]

    def against_whole(self, rank: int) -> list[float]:
        """The number times rho as a multiple of that of r = d, one a seed."""
        pairs = zip(self.by_rank[rank], self.by_rank[DIM], strict=True)
        return [value * rank / DIM / whole for value, whole in pairs]


@dataclass(frozen=True)
class RankStudy:
    """A study of ranks on the toy problem, with all clients in every round.

    Attributes:
        title: what it is.
        ranks: r; the last one is d.
        heterogeneity: of the problem.
        rounds: of the runs with noise, and at most of those without.
        seeds: runs of every rank, with noise and without.
    """

    title: str
    ranks: Sequence[int]
    heterogeneity: float = 0.5
    rounds: int = 10_000
    seeds: int = 3

    def run(self, rank: int, is_noisy: bool, seed: int, rounds: int) -> Run:
        """One run; without noise it ends when the last level is reached."""
        overrides = (
            ("data.init_args.heterogeneity", self.heterogeneity),
            ("model.init_args.lr", LEARNING_RATES[self.heterogeneity]),
            ("trainer.participation", "lfl.participation.FullParticipation"),
            ("trainer.check_val_every_n_rounds", rounds),
            *(() if is_noisy else WHOLE_BATCHES),
            *SSF.overrides(rank),
            ("trainer.callbacks+", "tools.papers.gradient_norm.GradientNorm"),
            (f"{_ARGUMENTS}.every", _EVERY) if is_noisy else (f"{_ARGUMENTS}.least", LEVELS[-1]),
        )
        return Run(SSF.config, rounds, seed, (SQUARE,), overrides)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        rounds, seeds = extent(options, self.rounds, self.seeds, quick_rounds=30)
        runs = {
            (rank, is_noisy): [self.run(rank, is_noisy, seed, rounds) for seed in range(seeds)]
            for is_noisy in (False, True)
            for rank in self.ranks
        }
        found = laboratory.by_group(runs)
        exact, noisy = ({rank: found[rank, is_noisy] for rank in self.ranks} for is_noisy in (False, True))
        measured = {
            f"rounds to {level:g}": Times({r: [rounds_to(o, level) for o in outcomes] for r, outcomes in exact.items()})
            for level in LEVELS
        }
        measured["norm at the end"] = Times({r: [at_end(o, rounds) for o in group] for r, group in noisy.items()})
        return Findings(self.tabulate(measured, rounds, seeds), self.numbers(measured))

    def numbers(self, measured: Mapping[str, Times]) -> list[Number]:
        """The numbers that were measured, and their multiples: of each as a setting."""
        kept = []
        for name, times in measured.items():
            values = {f"SSF, r = {rank}": times.by_rank[rank] for rank in self.ranks}
            multiples = {f"SSF, r = {rank}": times.against_whole(rank) for rank in self.ranks}
            kept += numbers_of({"value": Quantity(values), "times rho, of r = d": Quantity(multiples)}, name)
        return kept

    def tabulate(self, measured: Mapping[str, Times], rounds: int, seeds: int) -> Table:
        """A line for each rank."""
        columns = [column for name in measured for column in (name, "times rho")]
        table = Table(f"{self.title}: {rounds:,} rounds at most, {seeds} seed(s)", ["r", "rho", *columns])
        for rank in self.ranks:
            cells = [
                short(statistics.mean(values))
                for times in measured.values()
                for values in (times.by_rank[rank], times.against_whole(rank))
            ]
            table.add(str(rank), f"{rank / DIM:g}", *cells)
        table.notes.append(
            "Means over seeds. Rounds are without noise, with whole batches, to a squared gradient norm of so many "
            "times the first; the norm is with noise, the mean of the last tenth of the rounds. Times rho is the "
            "multiple of the number at r = d: 1 where the penalty is 1 / rho."
        )
        return table


def rounds_to(outcome: Outcome, level: float) -> float:
    """The first round with a squared gradient norm of at most ``level``; inf for none."""
    return next((n for n, square in outcome.series[SQUARE].items() if square <= level), math.inf)


def at_end(outcome: Outcome, rounds: int) -> float:
    """The mean squared gradient norm of the last tenth of the rounds; nan for a run that ended before."""
    squares = [square for n, square in outcome.series[SQUARE].items() if n > 0.9 * rounds]
    return math.nan if outcome.failure or not squares else statistics.mean(squares)


TARGETS = {"ssf-rho": RankStudy("SSF, rate against rho", ranks=(5, 10, 20, 50, DIM))}
