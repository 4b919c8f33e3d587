"""Memory and time do not grow with the number of clients, nor with the number of rounds.

    python tools/scale.py
    python tools/scale.py --clients 200 2000 20000 --rounds 100 --repeats 5
    python tools/scale.py --million

1. SCAFFOLD, whose clients each keep a control variate as long as the model, with ``client_state=memmap``: the same
   number of clients per round and of examples per client among 200, 2,000 and 20,000 clients. For contrast the last
   line keeps them in memory (``host``).
2. 500 rounds of a small model: resident memory after round 500 beside that after round 20.

Each run has a process of its own and is repeated, in turns; the memory is the median and the time the minimum over
repeats of the median round. Exit code 1, with the numbers, where a claim fails. Linux only (/proc).

``--million``, instead of these: FedAvg over 1,000,000 clients of two examples (IID) or ten (Dirichlet), SCAFFOLD with
files over 100,000, each beside the same with 1,000. Once each; the time of a round is that from end to end, evaluation
every 10 rounds and checkpoints among them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from report import Table
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FederatedCallback, Scaffold
from lfl.data import DatasetSource, DirichletPartitioner, FederatedDataModule, IIDPartitioner
from lfl.federation import Federation
from lfl.models import MLP, Classifier
from lfl.participation import UniformParticipation
from lfl.round import Round
from lfl.trainer import FederatedTrainer

NUM_FEATURES, NUM_CLASSES, EXAMPLES_PER_CLIENT = 64, 10, 20


@dataclass(frozen=True)
class Job:
    """One run; ``alpha`` is that of a Dirichlet partition, 0 for IID."""

    clients: int
    rounds: int
    hidden: int
    client_state: str = "memmap"
    engine: str = "sequential"
    method: str = "SCAFFOLD"
    examples: int = EXAMPLES_PER_CLIENT
    alpha: float = 0.0


@dataclass(frozen=True)
class Measurement:
    """What a run used.

    Attributes:
        resident: bytes after each round.
        peak: of the process, in bytes.
        seconds: of the training in each round.
        state_bytes: of rows in use.
        num_parameters: D.
        imported: resident bytes when there was no data yet.
        data_seconds: for data and partition.
        fit_seconds: from the start of ``fit`` to the first round.
        round_seconds: from the end of a round to the end of the next.
        files: bytes of the run's files, by name of the file or folder.
    """

    resident: list[int]
    peak: int
    seconds: list[float]
    state_bytes: int
    num_parameters: int
    imported: int
    data_seconds: float
    fit_seconds: float
    round_seconds: list[float]
    files: dict[str, int]


class Gaussians(Dataset[tuple[Tensor, Tensor]]):
    """As many examples as asked for, none of them kept: example i is a class mean plus one of a few noises.

    Args:
        length: number of examples.
    """

    def __init__(self, length: int) -> None:
        draws = torch.Generator().manual_seed(0)
        self.targets = torch.arange(length) % NUM_CLASSES
        self._means = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=draws)
        self._noises = torch.randn(997, NUM_FEATURES, generator=draws)

    def __len__(self) -> int:
        return len(self.targets)

    @override
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self._means[self.targets[i]] + self._noises[i % len(self._noises)], self.targets[i]


class Meter(FederatedCallback):
    """Reads the resident memory of this process after each round."""

    def __init__(self) -> None:
        self.resident: list[int] = []
        self.seconds: list[float] = []
        self.marks: list[float] = []
        self.state_bytes = 0

    @override
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.marks.append(time.perf_counter())

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        self.marks.append(time.perf_counter())
        self.resident.append(_resident())
        self.seconds.append(float(round.metrics["time/train_s"]))
        self.state_bytes = self.federation.store.nbytes


def run(job: Job) -> Measurement:
    """Train in this process."""
    torch.set_num_threads(1)
    imported, started = _resident(), time.perf_counter()
    source = DatasetSource(Gaussians(job.clients * job.examples), Gaussians(100), NUM_CLASSES, in_memory=False)
    partitioner = DirichletPartitioner(job.alpha) if job.alpha else IIDPartitioner()
    data = FederatedDataModule(source, partitioner, num_clients=job.clients, batch_size=10)
    data.setup("fit")
    partitioned = time.perf_counter()
    model = Classifier(MLP(NUM_FEATURES, [job.hidden], NUM_CLASSES), lr=0.05)
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="lfl_scale_") as folder:
        trainer = FederatedTrainer(
            accelerator="cpu",
            max_rounds=job.rounds,
            participation=UniformParticipation(clients_per_round=10),
            engine=job.engine,  # type: ignore[arg-type]  # one of its names
            aggregator=MeanAggregator("uniform"),
            client_state=job.client_state,  # type: ignore[arg-type]  # likewise
            check_val_every_n_rounds=10,
            callbacks=[Scaffold(), meter] if job.method == "SCAFFOLD" else [meter],
            default_root_dir=folder,
            enable_progress_bar=False,
        )
        trainer.fit(model, data)
        files = {entry.name: _bytes_in(entry) for entry in Path(trainer.log_dir).iterdir()}
    rounds = [end - start for start, end in pairwise(meter.marks)]
    usage = meter.resident, _peak(), meter.seconds, meter.state_bytes, trainer.layout.dim
    return Measurement(*usage, imported, partitioned - started, meter.marks[0] - partitioned, rounds, files)


def _bytes_in(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def run_apart(job: Job) -> Measurement:
    """Train in a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} failed:\n{done.stderr[-3000:]}")
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Usage:
    """A job's repeats, summed up, after a warm-up."""

    resident: float
    largest: float
    peak: float
    seconds: float
    state_bytes: int

    @classmethod
    def of(cls, measured: list[Measurement], warmup: int) -> Usage:
        """Medians of memory in bytes, and the fastest median of a round."""
        after = [m.resident[warmup:] for m in measured]
        return cls(
            statistics.median(values[0] for values in after),
            statistics.median(max(values) for values in after),
            statistics.median(m.peak for m in measured),
            min(statistics.median(m.seconds[warmup:]) for m in measured),
            measured[0].state_bytes,
        )


def scale_with_clients(options: argparse.Namespace) -> tuple[Table, list[str]]:
    """The first table, and what speaks against the claim."""
    jobs = [Job(n, options.rounds, options.hidden) for n in options.clients]
    jobs.append(Job(max(options.clients), options.rounds, options.hidden, client_state="host"))
    measured: dict[Job, list[Measurement]] = {job: [] for job in jobs}
    for _ in range(options.repeats):
        for job in jobs:
            measured[job].append(run_apart(job))
    dim = measured[jobs[0]][0].num_parameters
    table = Table(
        f"SCAFFOLD, D = {dim:,}, 10 clients a round, {options.rounds} rounds",
        ["clients", "state", "MB of rows", "MB after warm-up", "MB largest", "MB peak", "ms / round"],
    )
    usage = {job: Usage.of(found, options.warmup) for job, found in measured.items()}
    for job, used in usage.items():
        memory = [f"{x / 1e6:.1f}" for x in (used.state_bytes, used.resident, used.largest, used.peak)]
        table.add(f"{job.clients:,}", job.client_state, *memory, f"{1000 * used.seconds:.2f}")
    files = [usage[job] for job in jobs if job.client_state == "memmap"]
    failures = [
        *grows("resident memory after warm-up, MB", [u.resident / 1e6 for u in files], options.memory_tolerance),
        *grows("largest resident memory, MB", [u.largest / 1e6 for u in files], options.memory_tolerance),
        *grows("peak of the process, MB", [u.peak / 1e6 for u in files], options.memory_tolerance),
        *grows("ms per round", [1000 * u.seconds for u in files], options.time_tolerance),
    ]
    return table, failures


def grow_with_rounds(options: argparse.Namespace) -> tuple[Table, list[str]]:
    """The second table, and what speaks against the claim."""
    table = Table(
        "SCAFFOLD, memmap, a small model, 200 clients: resident MB",
        ["engine", "round 20", f"round {options.growth_rounds}", "change %"],
    )
    failures = []
    for engine in ("sequential", "vectorized"):
        resident = run_apart(Job(200, options.growth_rounds, hidden=16, engine=engine)).resident
        early, late = resident[19] / 1e6, resident[-1] / 1e6
        table.add(engine, f"{early:.1f}", f"{late:.1f}", f"{100 * (late / early - 1):+.2f}")
        failures += grows(f"resident MB at rounds 20 and {len(resident)} ({engine})", [early, late], 0.05)
    return table, failures


def million(options: argparse.Namespace) -> Table:
    """The big runs."""
    fedavg = Job(0, options.rounds, hidden=133, client_state="host", engine="vectorized", method="FedAvg", examples=2)
    scaffold = replace(fedavg, method="SCAFFOLD", client_state="memmap")
    jobs = [replace(fedavg, clients=n) for n in (1_000, options.most)]
    jobs.append(replace(fedavg, clients=options.most, examples=10, alpha=10.0))
    jobs += [replace(scaffold, clients=n) for n in (1_000, options.most // 10)]
    columns = [column_of(job, run_apart(job), options.warmup) for job in jobs]
    names = [f"{job.method}{f', Dirichlet({job.alpha:g})' if job.alpha else ''}" for job in jobs]
    table = Table(f"10 clients a round, {options.rounds} rounds, vectorized, D = 9,985", ["", *names])
    for name in columns[0]:
        table.add(name, *(column[name] for column in columns))
    return table


def column_of(job: Job, found: Measurement, warmup: int) -> dict[str, str]:
    """A big run, summed up."""
    rounds = [1e3 * seconds for seconds in found.round_seconds[warmup:]]
    numbers = {
        "s to make data and partition": f"{found.data_seconds:.2f}",
        "s from fit to the first round": f"{found.fit_seconds:.2f}",
        "ms a round, median": f"{statistics.median(rounds):.1f}",
        "ms a round, mean": f"{statistics.mean(rounds):.1f}",
    }
    memory = {"after imports": found.imported, "after the last round": found.resident[-1], "at the peak": found.peak}
    files = {"partition.pt": "partition.pt", "the last checkpoint": "checkpoints", "clients' rows": "clients"}
    return {
        "clients": f"{job.clients:,}",
        "examples": f"{job.clients * job.examples:,}",
        **numbers,
        **{f"MB resident {when}": f"{value / 1e6:.0f}" for when, value in memory.items()},
        **{f"MB on disk, {what}": f"{found.files.get(name, 0) / 1e6:.2f}" for what, name in files.items()},
    }


def grows(what: str, values: list[float], tolerance: float) -> list[str]:
    """A line where one of the values is more than ``1 + tolerance`` times the first."""
    growth = max(values) / values[0] - 1
    if growth <= tolerance:
        return []
    numbers = ", ".join(f"{value:.2f}" for value in values)
    return [f"FAILED: {what}: {numbers}; {100 * growth:.1f} % more than the first, over {100 * tolerance:.0f} %"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[200, 2000, 20000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model; D = 75 times it")
    parser.add_argument("--warmup", type=int, default=20, help="rounds that are not measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth_rounds", type=int, default=500)
    parser.add_argument("--memory_tolerance", type=float, default=0.05)
    parser.add_argument("--time_tolerance", type=float, default=0.15)
    parser.add_argument("--output", type=Path, default=Path("runs/scale"), help="folder of the tables' files")
    parser.add_argument("--million", action="store_true", help="the big runs instead")
    parser.add_argument("--most", type=int, default=1_000_000, help="clients of the largest")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.job:
        print(json.dumps(asdict(run(Job(**options.job)))))
        return
    if options.million:
        table = million(options)
        table.show()
        table.write(options.output, "million")
        return
    failures = []
    for name, part in (("clients", scale_with_clients), ("rounds", grow_with_rounds)):
        table, found = part(options)
        table.show()
        table.write(options.output, name)
        failures += found
    print("\n".join(failures) or "Neither memory nor time depends on the number of clients or rounds.")
    sys.exit(int(bool(failures)))


if __name__ == "__main__":
    main()
