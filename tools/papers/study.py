"""A study: methods under one setting, each with its runs of ``lfl fit``; its table, its claims and its figure."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lfl.report.figures import draw_band
from lfl.report.numbers import last_tenth, told_first
from tools import CONFIGS
from tools.papers.claims import Claim, publish
from tools.papers.experiments import Laboratory, Outcome, Run, Series, add_options, extent, opened, warning_of
from tools.table import Table

UP = ("comm/total_up_bytes",)
BOTH_WAYS = (*UP, "comm/total_down_bytes")

Overrides = tuple[tuple[str, object], ...]
Results = Mapping[str, Sequence[Outcome]]


@dataclass(frozen=True)
class Method:
    """A line of a study's table.

    Attributes:
        config: a file of ``configs/``.
        overrides: what is changed in it, beside what is changed in all.
        pace: its rounds that stand for one of the others', where it has smaller ones.
    """

    config: str
    overrides: Overrides = ()
    pace: int = 1


@dataclass(frozen=True)
class Study:
    """A comparison of methods under one setting.

    Attributes:
        title: what is compared, on what.
        methods: by name.
        overrides: what is changed in all files.
        rounds: of every run whose pace is 1.
        evaluate_every: rounds between evaluations, likewise.
        metrics: what is kept; the first is the accuracy.
        tabulate: from results to a table.
        claims: from results to what holds.
        clock: what curves are drawn against; rounds where it is empty.
        draw: draws the figure, another one than ``plot`` would.
    """

    title: str
    methods: Mapping[str, Method]
    overrides: Overrides
    rounds: int
    evaluate_every: int
    metrics: tuple[str, ...]
    tabulate: Callable[[Results, Table], None]
    claims: Callable[[Results], list[Claim]]
    columns: tuple[str, ...]
    clock: str = ""
    draw: Callable[[Results, Path], None] | None = None

    def runs(self, seeds: int, rounds: int, accelerator: str) -> dict[str, list[Run]]:
        """All runs, by method."""
        common = (*self.overrides, ("trainer.accelerator", accelerator))
        runs = {}
        for name, method in self.methods.items():
            every = ("trainer.check_val_every_n_rounds", self.evaluate_every * method.pace)
            changed = (*method.overrides, *common, every)
            runs[name] = [
                Run(method.config, rounds * method.pace, seed, self.metrics, changed) for seed in range(seeds)
            ]
        return runs


def partitioned(partitioner: str, **arguments: object) -> Overrides:
    """Overrides that deal the data by a partitioner of ``lfl.data``."""
    prefix = "data.init_args.partitioner"
    return ((prefix, f"lfl.data.{partitioner}"), *((f"{prefix}.init_args.{k}", v) for k, v in arguments.items()))


def final(outcome: Outcome, metric: str) -> float:
    """The mean of a metric over the last tenth of the evaluations, at least three."""
    return last_tenth(list(outcome.series[metric].values()), least=3)


def accuracy(results: Results, name: str, metric: str = "val_acc") -> float:
    """Accuracy in percent, the mean over seeds."""
    return statistics.mean(100 * final(outcome, metric) for outcome in results[name])


def last(outcome: Outcome, metric: str) -> float:
    """The last value of a metric."""
    return outcome.series[metric][max(outcome.series[metric])]


def sent(outcome: Outcome, directions: Sequence[str]) -> float:
    """Bytes of a run, in some of the directions ``UP`` and ``BOTH_WAYS`` name."""
    return sum(last(outcome, direction) for direction in directions)


def within(outcome: Outcome, directions: Sequence[str], budget: float) -> float:
    """The mean accuracy of the last three evaluations within so many bytes; NaN if there is none.

    So a method with twice the traffic of another has half its rounds.
    """
    reached = [
        value
        for number, value in outcome.series["val_acc"].items()
        if sum(outcome.series[direction][number] for direction in directions) <= budget
    ]
    return statistics.mean(reached[-3:]) if reached else math.nan


def rounds_to(outcome: Outcome, target: float, metric: str = "val_acc") -> int | None:
    """The first evaluated round at which the accuracy is reached."""
    return next((number for number, value in outcome.series[metric].items() if value >= target), None)


def told_rounds_to(outcomes: Sequence[Outcome], target: float) -> str:
    """Mean and deviation of the rounds to an accuracy, and how many runs never reached it."""
    return told_first([rounds_to(outcome, target) for outcome in outcomes])


def plot(study: Study, results: Results, path: Path) -> None:
    """Draw accuracy against rounds, and against the study's clock: means over seeds, with the range."""
    from matplotlib.figure import Figure

    clocks = ["", study.clock] if study.clock else [""]
    figure = Figure(figsize=(5.5 * len(clocks), 4.5), layout="constrained")
    axes = figure.subplots(1, len(clocks), sharey=True, squeeze=False)[0]
    for axis, clock in zip(axes, clocks, strict=True):
        for name, outcomes in results.items():
            series = [outcome.series[study.metrics[0]] for outcome in outcomes]
            rounds = sorted(set.intersection(*(set(values) for values in series)))
            ticks = [_mean([o.series[clock] for o in outcomes], number) if clock else number for number in rounds]
            columns = [[100 * values[number] for values in series] for number in rounds]
            means = [statistics.mean(column) for column in columns]
            draw_band(axis, ticks, means, list(map(min, columns)), list(map(max, columns)), label=name)
        axis.set(xlabel=clock or "round", ylabel=f"{study.metrics[0]}, %", xscale="log" if clock else "linear")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _mean(series: Sequence[Series], number: int) -> float:
    return statistics.mean(values[number] for values in series)


def compare(name: str, study: Study, laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Make the runs of one study; show and write its table and claims, draw its figure."""
    rounds, seeds = extent(options, study.rounds, 3, quick_rounds=10)
    results = laboratory.by_group(study.runs(seeds, rounds, options.accelerator))
    table = Table(f"{study.title}; {rounds} rounds, {seeds} seed(s), {options.accelerator}", list(study.columns))
    study.tabulate(results, table)
    publish(laboratory.output, name, study.title, table, study.claims(results), warning_of(options))
    draw = study.draw or partial(plot, study)
    draw(results, laboratory.output / f"{name}.png")


def parse(
    studies: Mapping[str, Study], about: str | None, output: str, arguments: list[str] | None
) -> argparse.Namespace:
    """Read a command line that names studies.

    Args:
        studies: those that it may name.
        about: the description of the command.
        output: the folder of what comes out, unless the command line names another one.
        arguments: of the command line; None for the process's own.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=list(studies))
    parser.add_argument("--accelerator", default="cpu", help="as in Lightning")
    add_options(parser, CONFIGS)
    parser.add_argument("--output", type=Path, default=Path(output))
    return parser.parse_args(arguments)


def run_studies(studies: Mapping[str, Study], options: argparse.Namespace) -> None:
    """Make the studies that ``options`` names, one after another."""
    with opened(options, options.output) as laboratory:
        for name in options.studies:
            compare(name, studies[name], laboratory, options)
