"""The memory and time that a local step of FedAvg, SCAFFOLD and SSF takes (sections 3.7 and 5.1 of the SSF paper).

    python -m tools.papers.ssf_steps memory
    python -m tools.papers.ssf_steps time             # on an idle core, with one job
    python -m tools.papers.ssf_steps memory time --quick

Steps are plain ones of PyTorch, of one client at a time, in the setting of ``ssf_networks``: MNIST-5000, 4 clients, all
of them in every round, batches of 50. Memory is that of the tensors that a step reads and has not made, and of those
that live at the same time in it (``step_observers.StepMemory``), in vectors of the network's d parameters: an MLP,
LeNet-5, and a wide MLP of 5.6 million parameters, beside which activations are small. Time is that of this process on
the CPU, on LeNet-5, of five repeats in which the methods take turns; the first round of each run is not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tools import CONFIGS
from tools.papers import ssf_networks
from tools.papers.claims import publish
from tools.papers.experiments import Laboratory, Outcome, add_options, extent, opened
from tools.papers.findings import Findings
from tools.papers.kept import Number, Quantities, Quantity, numbers_of
from tools.papers.ssf_networks import RANK
from tools.papers.step_observers import MILLISECONDS, PARTS, PEAK
from tools.papers.study import LENET_NORM, Method, Overrides, Results, Study, mlp, per_run
from tools.table import Table

METHODS = {
    "FedAvg": Method("fedavg.yaml"),
    "SCAFFOLD": Method("scaffold.yaml"),
    **{f"SSF, rank {rank:g}": Method("ssf.yaml", ((RANK, rank),)) for rank in (0.05, 0.2, 0.5)},
}
# Nothing that would make a step something else than the method's own operations.
_PLAIN: Overrides = (("trainer.engine", "sequential"), ("trainer.trace_steps", False), ("trainer.num_threads", 1))
_LENET = "LeNet-5 with GroupNorm"


@dataclass(frozen=True)
class StepStudy:
    """A study of local steps.

    Attributes:
        title: what is measured.
        networks: what they change in the files, by name.
        observer: a callback of ``step_observers``.
        metrics: that it logs.
        measure: from results to the quantities of the table.
        rounds: of every run.
        seeds: runs of every method.
        quick_rounds: of every run of a look.
        changed: what else is changed in the files.
    """

    title: str
    networks: Mapping[str, Overrides]
    observer: str
    metrics: tuple[str, ...]
    measure: Callable[[Results], Quantities]
    rounds: int
    seeds: int
    quick_rounds: int
    changed: Overrides = ()

    def on(self, network: Overrides) -> Study:
        """The study on one network."""
        watched = ("trainer.callbacks+", f"tools.papers.step_observers.{self.observer}")
        base = ssf_networks.study(self.title, *network, *self.changed, *_PLAIN, watched)
        return replace(base, methods=METHODS, rounds=self.rounds, evaluate_every=self.rounds, metrics=self.metrics)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found, with the networks as settings."""
        rounds, seeds = extent(options, self.rounds, self.seeds, self.quick_rounds)
        numbers: list[Number] = []
        lines: list[list[str]] = []
        columns: list[str] = []
        for network, overrides in self.networks.items():
            runs = self.on(overrides).runs(range(seeds), rounds, "cpu")
            # Repeat by repeat, so that all methods have what else the machine does.
            laboratory.outcomes(run for repeat in zip(*runs.values(), strict=True) for run in repeat)
            quantities = self.measure(laboratory.by_group(runs))
            numbers += numbers_of(quantities, network)
            lines += [[network, name, *(quantity.told(name) for quantity in quantities.values())] for name in runs]
            columns = list(quantities)
        table = Table(f"{self.title}, {seeds} repeat(s)", ["network", "method", *columns])
        for line in lines:
            table.add(*line)
        return Findings(table, numbers)


def memory_of(results: Results) -> Quantities:
    """Vectors of d numbers, and those of the controls and of the peak as multiples of SCAFFOLD's."""
    names = {part: f"memory/{part}" for part in PARTS} | {"peak": PEAK}
    (first, *_) = results["FedAvg"]
    vector = largest(first, names["model"])  # what FedAvg's step reads of models is one of them

    def vectors(metric: str) -> Quantity:
        return per_run(results, lambda outcome: largest(outcome, metric) / vector, 3)

    found = {name: vectors(metric) for name, metric in names.items()}
    return {**found, **{f"{name}, of SCAFFOLD's": multiples(found[name], "SCAFFOLD") for name in ("controls", "peak")}}


def largest(outcome: Outcome, metric: str) -> float:
    """The largest value of a metric."""
    return max(outcome.series[metric].values())


def time_of(results: Results) -> Quantities:
    """Milliseconds of a step, and multiples of FedAvg's in the same repeat."""
    times = per_run(results, milliseconds, 2)
    return {"ms a step": times, "of FedAvg's": multiples(times, "FedAvg")}


def milliseconds(outcome: Outcome) -> float:
    """The median over rounds, without the first, which makes much that the others have."""
    return statistics.median(value for number, value in outcome.series[MILLISECONDS].items() if number > 1)


def multiples(quantity: Quantity, of: str) -> Quantity:
    """A quantity as multiples of one method's, by seed."""
    units = quantity.values[of]
    return Quantity(
        {
            name: [value / unit for value, unit in zip(values, units, strict=True)]
            for name, values in quantity.values.items()
        },
        3,
    )


STUDIES = {
    "memory": StepStudy(
        "Memory of a local step, vectors of d numbers",
        {"MLP 784-100-10": mlp(100), _LENET: LENET_NORM, "MLP 784-2000-2000-10": mlp(2000, 2000)},
        "StepMemory",
        (*(f"memory/{part}" for part in PARTS), PEAK),
        memory_of,
        rounds=1,
        seeds=1,
        quick_rounds=1,
        changed=(("trainer.local_epochs", "null"), ("trainer.local_steps", 2)),
    ),
    "time": StepStudy(
        "Time of a local step on the CPU",
        {_LENET: LENET_NORM},
        "StepClock",
        (MILLISECONDS,),
        time_of,
        rounds=6,
        seeds=5,
        quick_rounds=2,
        changed=(("trainer.local_epochs", 1),),
    ),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=list(STUDIES))
    add_options(parser, "ssf_steps", CONFIGS)
    options = parser.parse_args(arguments)
    if "time" in options.studies and options.jobs > 1:
        parser.error("time is measured with `--jobs 1`: two runs at once would slow each other down")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    with opened(options) as laboratory:
        for name in options.studies:
            publish(f"ssf-{name}", STUDIES[name].reproduce(laboratory, options), options)


if __name__ == "__main__":
    main()
