"""The toy problem of the SSF paper: Tables 2 to 4, and the test without noise that tells the readings of c apart."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.papers.experiments import Laboratory, Outcome, Run, extent
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantity, numbers_of
from tools.papers.summaries import root_mean_square
from tools.table import Table

ERROR = "val_error"
LEARNING_RATES = {0.1: 0.01, 0.5: 0.01, 2.0: 0.001}  # by heterogeneity, as the paper found them
# What makes the problem exact: a batch is all 50 examples of a client, and there is no noise.
WHOLE_BATCHES = (
    ("data.init_args.noise", 0.0),
    ("data.init_args.batch_size", 50),
    ("trainer.local_sampling", "epochs"),
)
_ARGUMENTS = "trainer.callbacks.init_args"


@dataclass(frozen=True)
class Place:
    """A row of the paper's tables."""

    heterogeneity: float
    rank: int

    def __str__(self) -> str:
        return f"het {self.heterogeneity:g}, r = {self.rank}"


@dataclass(frozen=True)
class Method:
    """A method, with its variant.

    Attributes:
        paper: its name in the paper.
        option: the control update or variant; empty where there is none.
    """

    paper: str
    option: str = ""

    def __str__(self) -> str:
        return f"{self.paper}, {self.option}" if self.option else self.paper

    @property
    def config(self) -> str:
        """A file of ``configs/problems/``."""
        return f"matrix_regression_{self.paper.lower()}.yaml"

    def overrides(self, rank: int) -> list[tuple[str, object]]:
        """Settings that are changed in the config."""
        changed: list[tuple[str, object]] = []
        if self.paper in ("SSF", "FedSub"):
            changed.append((f"{_ARGUMENTS}.subspace.init_args.rank", rank))
        if self.option:
            changed.append((f"{_ARGUMENTS}.{'variant' if self.paper == 'FedSub' else 'control_update'}", self.option))
        return changed


FEDAVG = Method("FedAvg")
CONTROLS, VARIANTS = ("increment", "sampled_mean"), ("public", "stale")
METHODS = (
    *(Method(paper, control) for paper in ("SCAFFOLD", "SSF") for control in CONTROLS),
    FEDAVG,
    *(Method("FedSub", variant) for variant in VARIANTS),
)


class Errors:
    """The relative errors of all runs.

    Args:
        outcomes: of the seeds, by place and method.
        rounds: of a complete run.
    """

    def __init__(self, outcomes: Mapping[tuple[Place, Method], Sequence[Outcome]], rounds: int) -> None:
        self._outcomes, self.rounds = outcomes, rounds

    def tails(self, place: Place, method: Method) -> list[float]:
        """Root mean squares over the last tenth of the rounds, one a seed; nan for a run that diverged."""
        return [
            math.nan if outcome.failure else root_mean_square(self._after(outcome, 0.9))
            for outcome in self._outcomes[place, method]
        ]

    def tail(self, place: Place, method: Method) -> float:
        """The mean over seeds of the tails."""
        return statistics.mean(self.tails(place, method))

    def last(self, place: Place, method: Method) -> float:
        """The error after the last round, of the first seed."""
        return self._outcomes[place, method][0].series[ERROR].get(self.rounds, math.nan)

    def peak(self, place: Place, method: Method) -> float:
        """The largest error in the second half of the rounds."""
        errors = [error for outcome in self._outcomes[place, method] for error in self._after(outcome, 0.5)]
        return max(errors, default=math.nan)

    def curve(self, place: Place, method: Method) -> dict[int, float]:
        """The errors of the first seed by round."""
        return self._outcomes[place, method][0].series[ERROR]

    def _after(self, outcome: Outcome, share: float) -> list[float]:
        return [error for n, error in outcome.series[ERROR].items() if n > share * self.rounds]


@dataclass(frozen=True)
class ErrorTable:
    """A table of relative errors to reproduce.

    Attributes:
        title: what it is.
        published: the paper's numbers.
        places: its rows.
        rounds: of every run.
        seeds: runs of every method.
        methods: of every row.
        overrides: what else is changed in the files.
        quick_places: the rows of a quick look.
    """

    title: str
    published: Mapping[tuple[Place, str], float]
    places: Sequence[Place]
    rounds: int = 25_000
    seeds: int = 1
    methods: Sequence[Method] = METHODS
    overrides: tuple[tuple[str, object], ...] = ()
    quick_places: Sequence[Place] = ()

    def run(self, place: Place, method: Method, seed: int, rounds: int) -> Run:
        """One run."""
        overrides = [
            ("data.init_args.heterogeneity", place.heterogeneity),
            ("model.init_args.lr", LEARNING_RATES[place.heterogeneity]),
            ("trainer.check_val_every_n_rounds", 10 if rounds >= 1000 else 1),
            *self.overrides,
            *method.overrides(place.rank),
        ]
        return Run(method.config, rounds, seed, (ERROR,), tuple(overrides))

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        rounds, seeds = extent(options, self.rounds, self.seeds, quick_rounds=30)
        places = self.quick_places if options.quick and self.quick_places else self.places
        runs = {
            (place, method): [self.run(place, method, seed, rounds) for seed in range(seeds)]
            for place in places
            for method in self.methods
        }
        errors = Errors(laboratory.by_group(runs), rounds)
        table, numbers = self.tabulate(errors, places, seeds), self.numbers(errors, places)
        return Findings(table, numbers, lambda path: plot(errors, places, self.methods, path))

    def numbers(self, errors: Errors, places: Sequence[Place]) -> list[Number]:
        """The tails of all runs, and the largest error in the second half of their rounds."""
        found = []
        for place in places:
            tails = {str(method): errors.tails(place, method) for method in self.methods}
            peaks = {str(method): [errors.peak(place, method)] for method in self.methods}
            quantities = {"rms tail": Quantity(tails), "peak of the second half": Quantity(peaks)}
            found += numbers_of(quantities, str(place))
        return found

    def tabulate(self, errors: Errors, places: Sequence[Place], seeds: int) -> Table:
        """A table with published numbers beside ours."""
        columns = ["method", "het", "r", "paper", "ours", "over seeds", "ours / paper", "last round"]
        table = Table(f"{self.title}: relative error, {errors.rounds:,} rounds, {seeds} seed(s)", columns)
        for place in places:
            for method in self.methods:
                paper, ours = self.published.get((place, method.paper)), errors.tail(place, method)
                tails = errors.tails(place, method)
                table.add(
                    str(method),
                    f"{place.heterogeneity:g}",
                    str(place.rank),
                    "" if paper is None else "NaN" if math.isnan(paper) else f"{paper:.2e}",
                    "NaN" if math.isnan(ours) else f"{ours:.2e}",
                    f"{min(tails):.2e} to {max(tails):.2e}" if seeds > 1 else "",
                    f"{ours / paper:.2f}" if paper and math.isfinite(ours / paper) else "",
                    f"{errors.last(place, method):.2e}",
                )
        table.notes.append(
            "Ours: root mean square over the last 10 % of the rounds, the mean over seeds. The paper prints single "
            "rounds, which fluctuate by several percent; its c is read as sampled_mean, increment is the default here."
        )
        return table


def plot(errors: Errors, places: Sequence[Place], methods: Sequence[Method], path: Path) -> None:
    """Draw the error of the first seed against rounds, a panel for each place."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(places), 4), layout="constrained")
    for axes, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        for method in methods:
            curve = errors.curve(place, method)
            axes.plot(list(curve), list(curve.values()), label=str(method), linewidth=0.8)
        axes.set(title=str(place), xlabel="round", ylabel="relative error", yscale="log")
        axes.set_ylim(top=min(10.0, axes.get_ylim()[1]))  # one that diverges leaves the others their room
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=150)


_COLUMNS = ("SCAFFOLD", "FedAvg", "SSF", "FedSub")


def published(*rows: tuple[float, int, float, float, float, float]) -> dict[tuple[Place, str], float]:
    """A published table from rows of heterogeneity, r, and the numbers of SCAFFOLD, FedAvg, SSF and FedSub."""
    return {(Place(h, r), name): v for h, r, *values in rows for name, v in zip(_COLUMNS, values, strict=True)}


TABLE_2 = published(
    (0.1, 20, 6.9726e-3, 9.1265e-3, 7.5535e-3, 1.1295e-2),
    (0.5, 20, 6.4701e-3, 1.1197e-2, 8.2431e-3, 1.0556e-2),
    (2.0, 20, 2.0831e-3, 3.8143e-3, 3.4495e-3, 6.0512e-3),
)
TABLE_3 = published(
    (2.0, 1, 2.12e-3, 3.65e-3, 2.82e-1, 2.81e-1),
    (2.0, 5, 2.03e-3, 3.71e-3, 7.81e-3, 6.76e-3),
    (2.0, 10, 2.06e-3, 3.89e-3, 3.74e-3, 4.32e-3),
    (2.0, 20, 2.08e-3, 3.81e-3, 3.45e-3, 6.05e-3),
    (2.0, 50, 2.08e-3, 3.87e-3, 3.03e-3, math.nan),
)
TABLE_4 = published(
    (0.1, 50, 7.27e-3, 8.25e-3, 7.69e-3, math.nan),
    (0.5, 50, 7.00e-3, 1.04e-2, 8.70e-3, math.nan),
    (2.0, 50, 2.08e-3, 3.87e-3, 3.03e-3, math.nan),
)


def places_of(table: Mapping[tuple[Place, str], float]) -> list[Place]:
    """The rows of a published table."""
    return list(dict.fromkeys(place for place, _ in table))


NOISELESS = (*METHODS, Method("SCAFFOLD", "one_over_N"), Method("SSF", "one_over_N"))
TARGETS = {
    "ssf-table2": ErrorTable("SSF, Table 2 (r = 20)", TABLE_2, places_of(TABLE_2), seeds=3),
    "ssf-table3": ErrorTable(
        "SSF, Table 3 (het 2)",
        TABLE_3,
        places_of(TABLE_3),
        quick_places=[Place(2.0, 10), Place(2.0, 50)],
    ),
    "ssf-table4": ErrorTable(
        "SSF, Table 4 (r = 50), r = 20 beside it",
        TABLE_2 | TABLE_4,
        places_of(TABLE_2 | TABLE_4),
        quick_places=[Place(0.5, 20), Place(0.5, 50)],
    ),
    "ssf-noiseless": ErrorTable(
        "SSF, without noise, whole batches",
        {},
        [Place(0.5, 20)],
        rounds=6000,
        methods=NOISELESS,
        overrides=WHOLE_BATCHES,
    ),
}
