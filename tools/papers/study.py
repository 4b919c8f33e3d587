"""A study: methods under one setting, each with its runs of ``lfl fit``; its table, its claims and its figure."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lfl.report import command as lfl_report
from lfl.report.numbers import last_tenth
from tools import CONFIGS
from tools.papers.claims import publish
from tools.papers.experiments import Laboratory, Outcome, Run, add_options, extent, opened
from tools.papers.findings import Findings
from tools.papers.kept import KEPT, Quantities, Quantity, beside, numbers_of, quantities_of, tabulate

UP = ("comm/total_up_bytes",)
BOTH_WAYS = (*UP, "comm/total_down_bytes")
_LOOKS = ("--metric", "val_acc")

Overrides = tuple[tuple[str, object], ...]
Results = Mapping[str, Sequence[Outcome]]


def report_runs(
    name: str, laboratory: Laboratory, runs: Mapping[str, Sequence[Run]], looks: Sequence[str] = _LOOKS
) -> Path:
    """Make the report of a study's runs, with their figures.

    Args:
        name: of the study.
        laboratory: has made them.
        runs: by method.
        looks: options of ``lfl report``.
    """
    folders = {method: {run.seed: laboratory.folder(run) for run in group} for method, group in runs.items()}
    return report_folders(laboratory.output / name, folders, looks)


def report_folders(linked: Path, folders: Mapping[str, Mapping[int, Path]], looks: Sequence[str]) -> Path:
    """Make a report of runs that get names which people can read: ``LINKED/NUMBER METHOD/seed=S`` leads to each.

    Args:
        linked: the folder of those names; the report is in one beside it, ``LINKED-report``.
        folders: of the runs, by method and seed.
        looks: options of ``lfl report``.
    """
    shutil.rmtree(linked, ignore_errors=True)
    for number, (method, by_seed) in enumerate(folders.items(), 1):
        for seed, folder in by_seed.items():
            link = linked / f"{number:02d} {method}" / f"seed={seed}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(folder, link.parent), target_is_directory=True)
    output = linked.with_name(f"{linked.name}-report")
    options = [str(linked), "--output", str(output), *looks, "--names", *folders]
    return lfl_report.write(lfl_report.options_of(options))


@dataclass(frozen=True)
class Method:
    """A line of a study's table.

    Attributes:
        config: a file of ``configs/``.
        overrides: what is changed in it, beside what is changed in all.
        pace: its rounds that stand for one of the others', where it has smaller ones.
        rounds: of its own, in a whole study; None for those of all.
        short: what else is changed where the rounds are cut short, so that a look sees all of the method.
        metrics: what only its runs log, and is kept beside what is kept of all.
    """

    config: str
    overrides: Overrides = ()
    pace: int = 1
    rounds: int | None = None
    short: Overrides = ()
    metrics: tuple[str, ...] = ()


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
        measure: from results to the quantities of its table.
        report: makes the study's reports, of its name, by the laboratory that has made its runs, by method.
        needs: the methods that ``measure`` compares the others with.
    """

    title: str
    methods: Mapping[str, Method]
    overrides: Overrides
    rounds: int
    evaluate_every: int
    metrics: tuple[str, ...]
    measure: Callable[[Results], Quantities]
    report: Callable[[str, Laboratory, Mapping[str, Sequence[Run]]], object] = report_runs
    needs: tuple[str, ...] = ()

    def only(self, methods: Sequence[str] | None) -> Study:
        """The study of some of its methods, and those they are measured by; the same for None.

        Raises:
            SystemExit: it has no such method; says which it has.
        """
        if methods is None:
            return self
        if unknown := [name for name in methods if name not in self.methods]:
            raise SystemExit(f"no method {unknown[0]!r} in {self.title}: one of {', '.join(self.methods)}")
        return replace(self, methods={k: v for k, v in self.methods.items() if k in {*methods, *self.needs}})

    def runs(self, seeds: Sequence[int], rounds: int, accelerator: str) -> dict[str, list[Run]]:
        """All runs, by method."""
        common = (*self.overrides, ("trainer.accelerator", accelerator))
        runs = {}
        for name, method in self.methods.items():
            every = ("trainer.check_val_every_n_rounds", self.evaluate_every * method.pace)
            changed = (*method.overrides, *common, every, *(method.short if rounds < self.rounds else ()))
            made = method.rounds if method.rounds and rounds == self.rounds else rounds * method.pace
            metrics = (*self.metrics, *method.metrics)
            runs[name] = [Run(method.config, made, seed, metrics, changed) for seed in seeds]
        return runs


def partitioned(partitioner: str, **arguments: object) -> Overrides:
    """Overrides that deal the data by a partitioner of ``lfl.data``."""
    prefix = "data.init_args.partitioner"
    return ((prefix, f"lfl.data.{partitioner}"), *((f"{prefix}.init_args.{k}", v) for k, v in arguments.items()))


LENET: Overrides = (("model.init_args.backbone", "lfl.models.LeNet5"),)
LENET_NORM: Overrides = (*LENET, ("model.init_args.backbone.init_args.norm", "group"))


def mlp(*units: int) -> Overrides:
    """Overrides that train an MLP on MNIST, with hidden layers of so many units."""
    backbone = "model.init_args.backbone"
    return (
        (backbone, "lfl.models.MLP"),
        (f"{backbone}.init_args.in_features", 784),
        (f"{backbone}.init_args.hidden", str(list(units))),
        (f"{backbone}.init_args.num_classes", 10),
    )


def drawn(participants: int) -> tuple[str, object]:
    """Override that draws so many clients for a round, where they are drawn alike."""
    return ("trainer.participation.init_args.clients_per_round", participants)


def final(outcome: Outcome, metric: str) -> float:
    """The mean of a metric over the last tenth of the evaluations, at least three."""
    return last_tenth(list(outcome.series[metric].values()), least=3)


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


def within_bytes_of(
    outcomes: Sequence[Outcome], reference: Sequence[Outcome], directions: Sequence[str]
) -> list[float]:
    """Accuracies in percent where runs have sent as much as others have at their ends, paired by seed."""
    return [
        100 * within(outcome, directions, sent(other, directions))
        for outcome, other in zip(outcomes, reference, strict=True)
    ]


def rounds_to(outcome: Outcome, target: float, metric: str = "val_acc") -> float:
    """The first evaluated round at which the accuracy is reached; inf for none."""
    return next((number for number, value in outcome.series[metric].items() if value >= target), math.inf)


def per_run(results: Results, of: Callable[[Outcome], float], digits: int = 1) -> Quantity:
    """A quantity that each run has by itself."""
    return Quantity({name: [of(outcome) for outcome in outcomes] for name, outcomes in results.items()}, digits)


def accuracy_and_bytes(results: Results) -> Quantities:
    """The accuracy at the end in percent, and megabytes of all clients up and down."""
    return {
        "accuracy %": per_run(results, lambda outcome: 100 * final(outcome, "val_acc")),
        "MB up": per_run(results, lambda outcome: last(outcome, UP[0]) / 1e6),
        "MB down": per_run(results, lambda outcome: last(outcome, BOTH_WAYS[1]) / 1e6),
    }


def show(title: str, name: str, quantities: Quantities, options: argparse.Namespace) -> None:
    """Show and write the table and the claims of a study.

    Where other seeds or methods are asked for than those of the whole study, the numbers that are kept of the others
    stand beside those of these runs.
    """
    numbers = numbers_of(quantities, first_seed=options.first_seed)
    if (options.first_seed or options.methods) and not (options.quick or options.rounds):
        numbers = beside(numbers, KEPT / f"{name}.csv")
        quantities = quantities_of(numbers, {key: quantity.digits for key, quantity in quantities.items()})
    seeds = sorted({row.seed for row in numbers if row.seed is not None})
    table = tabulate(f"{title}, seeds {', '.join(map(str, seeds))}", quantities)
    publish(name, Findings(table, numbers), options)


def compare(name: str, study: Study, laboratory: Laboratory, options: argparse.Namespace) -> None:
    """Make the runs of one study; show and write its table and claims, draw its figure."""
    study = study.only(options.methods)
    rounds, count = extent(options, study.rounds, 3, quick_rounds=10)
    seeds = range(options.first_seed, options.first_seed + count)
    runs = study.runs(seeds, rounds, options.accelerator)
    quantities = study.measure(laboratory.by_group(runs))
    show(f"{study.title}; {rounds} rounds, {options.accelerator}", name, quantities, options)
    study.report(name, laboratory, runs)


def parse(
    studies: Mapping[str, Study], about: str | None, tool: str, arguments: list[str] | None
) -> argparse.Namespace:
    """Read a command line that names studies.

    Args:
        studies: those that it may name.
        about: the description of the command.
        tool: its name: results go to ``runs/TOOL`` unless the command line says otherwise, numbers to ``TOOL-STUDY``.
        arguments: of the command line; None for the process's own.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=list(studies))
    parser.add_argument("--accelerator", default="cpu", help="as in Lightning")
    parser.add_argument("--methods", nargs="+", help="some of a study's, and those they are read against; else all")
    parser.add_argument("--first-seed", type=int, default=0, help="more seeds, beside those whose numbers are kept")
    add_options(parser, tool, CONFIGS)
    return parser.parse_args(arguments)


def run_studies(studies: Mapping[str, Study], options: argparse.Namespace) -> None:
    """Make the studies that ``options`` names, one after another."""
    with opened(options) as laboratory:
        for name in options.studies:
            compare(f"{options.tool}-{name}", studies[name], laboratory, options)
