"""Memory, disk and time of runs with many clients, each run in a process of its own; the command is ``growth``."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.aggregation import MeanAggregator
from lfl.callbacks import Scaffold
from lfl.checkpointing import Checkpointing
from lfl.data import DatasetSource, DirichletPartitioner, FederatedDataModule, IIDPartitioner
from lfl.models import MLP, Classifier
from lfl.participation import UniformParticipation
from lfl.round import Round
from tools import REPOSITORY
from tools.benchmarks.clock import RoundClock
from tools.table import Table
from tools.training import fitted

NUM_FEATURES, NUM_CLASSES, EXAMPLES_PER_CLIENT = 64, 10, 20


@dataclass(frozen=True)
class Job:
    """A run with many clients; ``alpha`` is that of a Dirichlet partition, 0 for IID."""

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
    """Memory, disk and time that a run used.

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
    """Examples made when they are asked for: example i is a class mean plus one of a few noise vectors.

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


class Meter(RoundClock):
    """Times rounds, and reads the resident memory of this process after each."""

    def __init__(self) -> None:
        super().__init__()
        self.resident: list[int] = []
        self.training: list[float] = []

    @override
    def on_round_end(self, round: Round) -> None:
        super().on_round_end(round)
        self.resident.append(_resident())
        self.training.append(float(round.metrics["time/train_s"]))


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
    with fitted(
        model,
        data,
        max_rounds=job.rounds,
        participation=UniformParticipation(clients_per_round=10),
        engine=job.engine,
        aggregator=MeanAggregator("uniform"),
        client_state=job.client_state,
        checkpoint=Checkpointing(),
        check_val_every_n_rounds=10,
        callbacks=[Scaffold(), meter] if job.method == "SCAFFOLD" else [meter],
    ) as trainer:
        files = {entry.name: _bytes_in(entry) for entry in Path(trainer.log_dir).iterdir()}
        state_bytes = trainer.store.nbytes
    assert meter.started is not None
    return Measurement(
        resident=meter.resident,
        peak=_peak(),
        seconds=meter.training,
        state_bytes=state_bytes,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        imported=imported,
        data_seconds=partitioned - started,
        fit_seconds=meter.started - partitioned,
        round_seconds=meter.seconds,
        files=files,
    )


def _bytes_in(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def run_apart(job: Job) -> Measurement:
    """Train in a process of its own."""
    command = [sys.executable, "-m", "tools.benchmarks.growth", "job", json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
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
        """Sum up repeats: medians of memory in bytes, and the fastest median of a round."""
        after = [m.resident[warmup:] for m in measured]
        return cls(
            statistics.median(values[0] for values in after),
            statistics.median(max(values) for values in after),
            statistics.median(m.peak for m in measured),
            min(statistics.median(m.seconds[warmup:]) for m in measured),
            measured[0].state_bytes,
        )


def tables(options: argparse.Namespace) -> tuple[dict[str, Table], list[str]]:
    """Memory with the number of clients and with the number of rounds, and what grows."""
    parts = {"clients": over_clients(options), "rounds": over_rounds(options)}
    failures = [line for _, growth in parts.values() for line in growth]
    return {name: table for name, (table, _) in parts.items()}, failures


def over_clients(options: argparse.Namespace) -> tuple[Table, list[str]]:
    """Memory and time for several numbers of clients, and which of them grow."""
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


def over_rounds(options: argparse.Namespace) -> tuple[Table, list[str]]:
    """Memory early and late in a run, and whether it grows."""
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
    """A column for each run with very many clients, and for the same with few."""
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
    """The rows of a column."""
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
