"""How the time of a round grows, and what is overhead in it.

    python tools/scaling.py                 # rounds per second against clients per round, model size, all clients
    python tools/scaling.py --quick         # a look, in seconds
    python tools/scaling.py overhead        # a model without work: microseconds per round, client and step

``growth``, the default: FedAvg on both engines, an MLP on digits, one step of 10 examples per client, one quantity at a
time. Every run lasts ``--seconds``; all take turns, ``--passes`` times. Seconds per round ~ quantity^e: the exponent e
is the slope of a line through the logarithms of the fastest pass, its spread the slopes of single passes. The last
column is the slope between the two largest values, where constant costs weigh least. All clients share the same few
examples, so that a million of them are index arrays. No evaluation, no checkpoints; logging as always.

``overhead``: seconds per round = a + b clients + c steps, by least squares over a grid, for a model of four numbers
the sum of whose squares is the loss. A step is one of a cohort: on the sequential engine of one client, on the
vectorized engine of 64. Where it goes is told by cProfile, as shares of a round of the middle of the grid.

Seconds are those of the process on its one thread (``--clock cpu``), not of the wall clock: on a machine of its own the
two are the same, and on a shared one what others do adds little.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from report import Table
from torch import Tensor
from typing_extensions import override

from lfl.callbacks import FederatedCallback
from lfl.data import Digits, FederatedDataModule, IIDPartitioner, IndexSets, Partition
from lfl.federation import Federation
from lfl.models import MLP, Classifier
from lfl.participation import UniformParticipation
from lfl.round import Round
from lfl.trainer import FederatedTrainer

NUM_FEATURES, EXAMPLES_PER_CLIENT, COHORT = 64, 10, 64
ENGINES = ("sequential", "vectorized")
LINEAR = 1.1  # exponents up to here are no news: caches end where models and cohorts grow
WARM_UP, LEAST_ROUNDS = 2, 4


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        engine: sequential or vectorized.
        per_round: clients in a round.
        hidden: width of the MLP, D = 75 times it plus 10; 0 for the model without work.
        clients: N.
        steps: local steps, of 10 examples or, without work, of one.
        traced: whether the local step is recorded.
    """

    engine: str
    per_round: int = 10
    hidden: int = 133
    clients: int = 1_000
    steps: int = 1
    traced: bool = False

    @property
    def dim(self) -> int:
        """D."""
        return 75 * self.hidden + 10 if self.hidden else 4


class Empty(LightningModule):
    """Four numbers, the sum of whose squares is the loss: its gradient has to be computed at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(4))

    @override
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        del batch, batch_idx
        return self.numbers.square().sum()

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stopwatch(FederatedCallback):
    """Times whole rounds, one end to the next, and stops the run when it has lasted.

    Args:
        limit: seconds after the first rounds, in which steps are recorded and memory is allocated.
        clock: what times the rounds.
        profile: what profiles them.
    """

    def __init__(self, limit: float, clock: Callable[[], float], profile: cProfile.Profile | None) -> None:
        self.limit, self.clock, self.profile, self.marks = limit, clock, profile, list[float]()
        self._until = math.inf

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        if len(self.marks) == WARM_UP:
            self._until = time.perf_counter() + self.limit
            if self.profile is not None:
                self.profile.enable()
        self.marks.append(self.clock())
        if time.perf_counter() > self._until and len(self.marks) > WARM_UP + LEAST_ROUNDS:
            self.federation.stop()
            if self.profile is not None:
                self.profile.disable()

    @property
    def seconds(self) -> float:
        """Median of a round."""
        return statistics.median(end - start for start, end in pairwise(self.marks[WARM_UP:]))


def shared_examples(num_clients: int, batch_size: int) -> FederatedDataModule:
    """Digits for any number of clients: client i has ten examples in a row, from where those of the one before end."""
    data = FederatedDataModule(Digits(), IIDPartitioner(), num_clients=1, batch_size=batch_size)
    data.setup("fit")
    positions = torch.arange(num_clients * EXAMPLES_PER_CLIENT) % int(data.client_sizes[0])
    train = IndexSets(positions, torch.arange(num_clients + 1) * EXAMPLES_PER_CLIENT)
    nobody = IndexSets(torch.empty(0, dtype=torch.int64), torch.zeros(num_clients + 1, dtype=torch.int64))
    data.num_clients, data.partition = num_clients, Partition(train, nobody)
    return data


def run(job: Job, options: argparse.Namespace, profile: cProfile.Profile | None = None) -> float:
    """Seconds of a round."""
    torch.manual_seed(0)
    watch = Stopwatch(options.seconds, time.process_time if options.clock == "cpu" else time.perf_counter, profile)
    model = Classifier(MLP(NUM_FEATURES, [job.hidden]), lr=0.01) if job.hidden else Empty()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            accelerator="cpu",
            engine=job.engine,  # type: ignore[arg-type]  # one of its names
            cohort_size=None if job.hidden else COHORT,
            trace_steps=job.traced,
            max_rounds=10**6,
            check_val_every_n_rounds=10**6,
            participation=UniformParticipation(job.per_round),
            local_steps=job.steps,
            callbacks=[watch],
            checkpoint=None,
            default_root_dir=folder,
            enable_progress_bar=False,
        )
        data = shared_examples(job.clients, EXAMPLES_PER_CLIENT if job.hidden else 1)
        trainer.fit(model, data)
    return watch.seconds


# -- growth ------------------------------------------------------------------------------------------------------------


@dataclass
class Curve:
    """Seconds per round against one quantity, on one engine.

    Attributes:
        quantity: its name.
        jobs: by its values, ascending.
        passes: seconds of each job, once a pass.
    """

    quantity: str
    engine: str
    jobs: dict[int, Job]
    passes: list[list[float]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """The fastest pass of each job: what else the machine does only adds."""
        return [min(found) for found in zip(*self.passes, strict=True)]

    @property
    def exponents(self) -> tuple[float, float, float]:
        """Of the fastest passes, and the least and the largest of single passes."""
        single = [slope(self.jobs, seconds) for seconds in self.passes]
        return slope(self.jobs, self.seconds), min(single), max(single)

    @property
    def last(self) -> float:
        """The exponent between the two largest values."""
        return slope(list(self.jobs)[-2:], self.seconds[-2:])

    @property
    def is_superlinear(self) -> bool:
        """Whether the whole curve, or its end, is steeper than a line."""
        return max(self.exponents[0], self.last) > LINEAR


def slope(values: Sequence[int] | dict[int, Any], seconds: Sequence[float]) -> float:
    """Least-squares slope of log seconds against log values."""
    return float(np.polyfit(np.log(list(values)), np.log(seconds), 1)[0])


def curves(quick: bool) -> list[Curve]:
    """What is measured."""
    found = []
    for engine in ENGINES:
        per_round = {m: Job(engine, per_round=m) for m in ([10, 30] if quick else [10, 30, 100, 300, 1_000])}
        sizes = [Job(engine, hidden=h) for h in ([13, 40] if quick else [13, 42, 133, 422, 1_333, 4_216, 13_333])]
        everyone = {n: Job(engine, clients=n) for n in ([100, 1_000] if quick else [10**e for e in range(2, 7)])}
        found.append(Curve("clients per round", engine, per_round))
        found.append(Curve("parameters", engine, {job.dim: job for job in sizes}))
        found.append(Curve("clients", engine, everyone))
    return found


def growth(options: argparse.Namespace) -> Table:
    """Measure all curves, plot them, and say what grows how."""
    measured = curves(options.quick)
    for _ in range(options.passes):
        for curve in measured:
            curve.passes.append([run(job, options) for job in curve.jobs.values()])
    plot(measured, options.output / "scaling.png" if options.plot is None else options.plot)
    table = Table(
        f"Seconds per round ~ quantity^e, FedAvg; {torch.get_num_threads()} thread(s), {options.passes} passes",
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
    """Rounds per second against each quantity, a panel each."""
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


# -- overhead ----------------------------------------------------------------------------------------------------------

VARIANTS = {
    "sequential": Job("sequential", hidden=0),
    "sequential, traced": Job("sequential", hidden=0, traced=True),
    "vectorized": Job("vectorized", hidden=0),
    "vectorized, traced": Job("vectorized", hidden=0, traced=True),
}

# The parts of a round: functions, and who calls them there (nobody in particular: time in them is told whoever does).
# "train: gradient" is what the other two leave of the steps.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "select": (("_select",), ()),
    "download": (("_download",), ()),
    "train: cohorts": (("cohorts", "train", "_load_buffers", "_refuse_nonfinite"), ("run_round",)),
    "train: batches": (("of_phase", "reading_ahead"), ("_local_steps",)),
    "train: gradient": (("_train_phase",), ()),
    "train: step": (("step",), ("_take_step",)),
    "upload": (("_upload",), ()),
    "aggregate": (("_aggregate", "_step"), ("run_round",)),
    "evaluate": (("_evaluate",), ("run_round",)),
    "finish": (("_finish",), ("run_round",)),
    "write": (("_write",), ()),
}


@dataclass(frozen=True)
class Cost:
    """Microseconds per round, client and step, and the largest relative error of the fit."""

    round: float
    client: float
    step: float
    error: float


def fit_costs(jobs: Sequence[Job], seconds: Sequence[float]) -> Cost:
    """Least squares on relative errors, so that short rounds count as much as long ones."""
    cohort = {"sequential": 1, "vectorized": COHORT}
    steps = [job.steps * math.ceil(job.per_round / cohort[job.engine]) for job in jobs]
    design = np.array([[1.0, job.per_round, count] for job, count in zip(jobs, steps, strict=True)])
    measured = np.array(seconds)
    found = np.linalg.lstsq(design / measured[:, None], np.ones(len(jobs)), rcond=None)[0]
    error = float(np.abs(design @ found / measured - 1).max())
    per_round, per_client, per_step = (1e6 * float(value) for value in found)
    return Cost(per_round, per_client, per_step, error)


def shares(job: Job, options: argparse.Namespace) -> dict[str, float]:
    """Where a round's time goes, by parts, under cProfile; "rest" is what is in none of them."""
    profile = cProfile.Profile()
    run(job, options, profile)
    stats: Any = pstats.Stats(profile)  # whose attributes are not in the types

    def spent(names: Sequence[str], callers: Sequence[str]) -> float:
        """Seconds in functions of these names and below."""
        entries = [entry for (_, _, name), entry in stats.stats.items() if name in names]
        if not callers:
            return sum(float(entry[3]) for entry in entries)
        calls = [call for entry in entries for call in entry[4].items()]
        return sum(float(times[3]) for (_, _, name), times in calls if name in callers)

    parts = {part: spent(*where) for part, where in PARTS.items()}
    parts["train: cohorts"] -= parts["train: gradient"]
    parts["train: gradient"] -= parts["train: batches"] + parts["train: step"]
    parts["rest"] = stats.total_tt - sum(parts.values())
    return {part: value / stats.total_tt for part, value in parts.items()}


def overhead(options: argparse.Namespace) -> Table:
    """Fit the costs of the variants, and tell where they go."""
    clients, steps = ([1, 8], [1, 4]) if options.quick else ([1, 4, 16, 64], [1, 4, 10])
    middle = (16, 4)
    table = Table(
        f"A model without work, {torch.get_num_threads()} thread(s); shares of a round of {middle[0]} clients, "
        f"{middle[1]} steps each",
        ["", *VARIANTS],
    )
    columns = []
    for variant in VARIANTS.values():
        jobs = [replace(variant, per_round=m, steps=k) for m in clients for k in steps]
        passes = [[run(job, options) for job in jobs] for _ in range(options.passes)]
        cost = fit_costs(jobs, [min(found) for found in zip(*passes, strict=True)])
        found = shares(replace(variant, per_round=middle[0], steps=middle[1]), options)
        columns.append({
            "us per round": f"{cost.round:.0f}",
            "us per client": f"{cost.client:.1f}",
            "us per step of a cohort": f"{cost.step:.0f}",
            "largest error of the fit, %": f"{100 * cost.error:.0f}",
            **{f"{part}, %": f"{100 * share:.1f}" for part, share in found.items()},
        })  # fmt: skip
    for name in columns[0]:
        table.add(name, *(column[name] for column in columns))
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["growth", "overhead"], default="growth")
    parser.add_argument("--quick", action="store_true", help="few values, one short pass")
    parser.add_argument("--seconds", type=float, help="of a run, 0.7 or 0.3 (growth, overhead)")
    parser.add_argument("--passes", type=int, help="of all runs; 3")
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help="seconds of the process, or of a clock")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    parser.add_argument("--plot", type=Path, help="the picture; scaling.png in the folder of the tables")
    parser.add_argument("--output", type=Path, default=Path("runs/scaling"), help="folder of the tables' files")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.passes = options.passes or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.05 if options.quick else 0.7 if options.what == "growth" else 0.3)
    table = (growth if options.what == "growth" else overhead)(options)
    table.show()
    table.write(options.output, options.what)


if __name__ == "__main__":
    main()
