"""The growth of the time and the memory of a run with clients, rounds and the model.

    python -m tools.benchmarks.growth time              # seconds per round against each quantity, with a picture
    python -m tools.benchmarks.growth memory            # with clients and with rounds; exit code 1 if it grows
    python -m tools.benchmarks.growth million           # time, memory and disk with a million clients
    python -m tools.benchmarks.growth time --quick      # a look, in seconds; also of the other two

``time``: FedAvg on both engines, an MLP on digits, one step of 10 examples per client, one quantity at a time. Every
run lasts ``--seconds``; all take turns, ``--repeats`` times. Seconds per round ~ quantity^e: the exponent e is the
slope of a line through the logarithms of the fastest repeat, its spread the slopes of single ones. The last column is
the slope between the two largest values, where constant costs weigh least. All clients share the same few examples, so
that a million of them are index arrays. No evaluation, no checkpoints; logging as always. Seconds are those of the
process on its one thread (``--clock cpu``), not of the wall clock: on a machine of its own the two are the same, and on
a shared one what others do adds little.

``memory``: SCAFFOLD, whose clients each keep a control variate as long as the model, with ``client_state=memmap``: the
same number of clients per round and of examples per client among 200, 2,000 and 20,000 clients. For contrast the last
line keeps them in memory (``host``). Then 500 rounds of a small model: resident memory after the last round beside that
after round 20. Each run has a process of its own and is repeated, in turns; the memory is the median and the time the
minimum over repeats of the median round. Exit code 1, with the numbers, where a claim fails. Linux only (/proc).

``million``: FedAvg over 1,000,000 clients of two examples (IID) or ten (Dirichlet), SCAFFOLD with files over 100,000,
each beside the same with 1,000. Once each, in a process of its own; the time of a round is that from end to end,
evaluation every 10 rounds and checkpoints among them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from lfl.cli.allocator import keep_freed_memory
from lfl.models import MLP, Classifier
from lfl.participation import UniformParticipation
from tools.benchmarks import memory
from tools.benchmarks.clock import seconds_per_round
from tools.benchmarks.workloads import shared_digits
from tools.table import Table

NUM_FEATURES, BATCH_SIZE = 64, 10
ENGINES = ("sequential", "vectorized")
LINEAR = 1.1  # exponents up to here are no news: caches end where models and cohorts grow


@dataclass(frozen=True)
class Job:
    """A run of FedAvg on digits.

    Attributes:
        engine: sequential or vectorized.
        per_round: clients in a round.
        hidden: width of the MLP, D = 75 times it plus 10.
        clients: N.
    """

    engine: str
    per_round: int = 10
    hidden: int = 133
    clients: int = 1_000

    @property
    def dim(self) -> int:
        """Number of parameters D."""
        return 75 * self.hidden + 10

    def seconds(self, options: argparse.Namespace) -> float:
        """Seconds of a round."""
        torch.manual_seed(0)
        return seconds_per_round(
            Classifier(MLP(NUM_FEATURES, [self.hidden]), lr=0.01),
            shared_digits(self.clients, BATCH_SIZE),
            options.seconds,
            options.clock,
            engine=self.engine,
            participation=UniformParticipation(self.per_round),
            local_steps=1,
        )


@dataclass
class Curve:
    """Seconds per round against one quantity, on one engine.

    Attributes:
        quantity: its name.
        jobs: by its values, ascending.
        repeats: seconds of each job, once a repeat.
    """

    quantity: str
    engine: str
    jobs: dict[int, Job]
    repeats: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """The fastest repeat of each job: what else the machine does only adds."""
        return [min(found) for found in zip(*self.repeats, strict=True)]

    @property
    def exponents(self) -> tuple[float, float, float]:
        """Exponents of the fastest repeats, and the least and the largest of single ones."""
        single = [slope(list(self.jobs), seconds) for seconds in self.repeats]
        return slope(list(self.jobs), self.seconds), min(single), max(single)

    @property
    def last(self) -> float:
        """The exponent between the two largest values."""
        return slope(list(self.jobs)[-2:], self.seconds[-2:])

    @property
    def is_superlinear(self) -> bool:
        """Whether the whole curve, or its end, is steeper than a line."""
        return max(self.exponents[0], self.last) > LINEAR


def slope(values: Sequence[int], seconds: Sequence[float]) -> float:
    """Least-squares slope of log seconds against log values."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def curves(quick: bool) -> list[Curve]:
    """One curve for each quantity on each engine, still without measurements."""
    found = []
    for engine in ENGINES:
        per_round = {m: Job(engine, per_round=m) for m in ([10, 30] if quick else [10, 30, 100, 300, 1_000])}
        sizes = [Job(engine, hidden=h) for h in ([13, 40] if quick else [13, 42, 133, 422, 1_333, 4_216, 13_333])]
        everyone = {n: Job(engine, clients=n) for n in ([100, 1_000] if quick else [10**e for e in range(2, 7)])}
        found.append(Curve("clients per round", engine, per_round))
        found.append(Curve("parameters", engine, {job.dim: job for job in sizes}))
        found.append(Curve("clients", engine, everyone))
    return found


def table_of_time(options: argparse.Namespace) -> Table:
    """Measure all curves, plot them, and tabulate their exponents."""
    measured = curves(options.quick)
    for _ in range(options.repeats):
        for curve in measured:
            curve.repeats.append([job.seconds(options) for job in curve.jobs.values()])
    plot(measured, options.output / "growth.png" if options.plot is None else options.plot)
    table = Table(
        f"Seconds per round ~ quantity^e, FedAvg; {torch.get_num_threads()} thread(s), {options.repeats} repeats",
        ["quantity", "engine", "from", "to", "ms first", "ms last", "e", "e least", "e most", "e at the end"],
    )
    for curve in measured:
        values, seconds = list(curve.jobs), curve.seconds
        exponents = [f"{e:.2f}" for e in (*curve.exponents, curve.last)]
        ends = [f"{values[0]:,}", f"{values[-1]:,}", f"{1e3 * seconds[0]:.2f}", f"{1e3 * seconds[-1]:.2f}"]
        table.add(curve.quantity, curve.engine, *ends, *exponents)
    steep = [f"{curve.quantity} ({curve.engine})" for curve in measured if curve.is_superlinear]
    table.notes.append(
        f"Super-linear: {', '.join(steep)}." if steep else f"Nothing super-linear (no e above {LINEAR})."
    )
    return table


def plot(measured: list[Curve], path: Path) -> None:
    """Draw rounds per second against each quantity, a panel each."""
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(curve.quantity for curve in measured))
    figure = Figure(figsize=(4.5 * len(quantities), 4), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
        for curve in measured:
            if curve.quantity == quantity:
                label = f"{curve.engine}, e = {curve.exponents[0]:.2f}"
                axes.plot(list(curve.jobs), [1 / s for s in curve.seconds], marker="o", label=label)
        axes.set(xlabel=quantity, ylabel="rounds per second", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    parsers = {name: kinds.add_parser(name) for name in ("time", "memory", "million")}
    time, held, million = parsers.values()
    time.add_argument("--seconds", type=float, help="of the timed rounds of a run; 0.7")
    time.add_argument("--repeats", type=int, help="turns of every run; 3")
    time.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help="seconds of the process, or of a clock")
    time.add_argument("--threads", type=int, default=1, help="torch's threads")
    time.add_argument("--plot", type=Path, help="the picture; growth.png in the folder of the tables")
    held.add_argument("--clients", type=int, nargs="+", default=[200, 2000, 20000])
    held.add_argument("--rounds", type=int, default=200)
    held.add_argument("--hidden", type=int, default=1024, help="width of the model; D = 75 times it")
    held.add_argument("--repeats", type=int, default=3, help="turns of every run")
    held.add_argument("--growth_rounds", type=int, default=500, help="of the runs whose memory is compared over rounds")
    held.add_argument("--memory_tolerance", type=float, default=0.05)
    held.add_argument("--time_tolerance", type=float, default=0.15)
    million.add_argument("--most", type=int, default=1_000_000, help="clients of the largest run")
    million.add_argument("--rounds", type=int, default=200)
    for chosen in (held, million):
        chosen.add_argument("--warmup", type=int, default=20, help="rounds that are not measured")
    for chosen in parsers.values():
        chosen.add_argument("--quick", action="store_true", help="few values, short runs: no results")
        chosen.add_argument("--output", type=Path, default=Path("runs/growth"), help="folder of the tables' files")
    job = kinds.add_parser("job", help="one run of `memory` or `million`, in this process")
    job.add_argument("job", type=json.loads)
    options = parser.parse_args(arguments)
    if options.kind == "time":
        options.seconds = options.seconds or (0.05 if options.quick else 0.7)
        options.repeats = options.repeats or (1 if options.quick else 3)
    elif options.kind != "job" and options.quick:
        options.rounds, options.warmup = 6, 1
        if options.kind == "memory":
            options.clients, options.hidden, options.repeats, options.growth_rounds = [20, 200], 64, 1, 30
        else:
            options.most = 1000
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    keep_freed_memory()  # as the command line does
    if options.kind == "job":
        print(json.dumps(asdict(memory.run(memory.Job(**options.job)))))
        return
    failures: list[str] = []
    if options.kind == "time":
        torch.set_num_threads(options.threads)
        tables = {"time": table_of_time(options)}
    elif options.kind == "million":
        tables = {"million": memory.million(options)}
    else:
        tables, failures = memory.tables(options)
    for name, table in tables.items():
        table.show()
        table.write(options.output, name)
    if options.kind == "memory":
        print("\n".join(failures) or "Neither memory nor time depends on the number of clients or rounds.")
    sys.exit(int(bool(failures)))


if __name__ == "__main__":
    main()
