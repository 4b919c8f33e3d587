"""Speed on a GPU: engines, steps, precisions, cohort sizes, and whether the host waits for the device in a step.

    python tools/gpu.py
    python tools/gpu.py --rounds 5 --accelerator cpu --small          # a look without a GPU: no results

Random images of CIFAR's shape, all on the device. ``pfl-cifar``: 50 clients per round with 50 examples each, batches of
10, a small CNN (the shape of pfl-research's published benchmark). ``resnet``: ResNet-18 with GroupNorm, 4 clients per
round with 50 examples each. One local epoch of SGD, no evaluation; a round's time is that of ``time/train_s``, with the
device waited for. Prints, last, one table of rounds per second and memory, then the share of time in kernels and the
host's waits during local steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from report import Table
from typing_extensions import override
from workloads import small_cnn

from lfl.callbacks import FederatedCallback
from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.engine import LocalEngine
from lfl.engine.graph.traced import TraceError
from lfl.models import Classifier, ResNet
from lfl.participation import UniformParticipation
from lfl.round import Cohort, Round
from lfl.trainer import FederatedTrainer

EXAMPLES = 50
STEPS: dict[bool | str, str] = {False: "plain", True: "recorded", "compile": "compiled"}


WORKLOADS: dict[str, tuple[Any, int]] = {
    "pfl-cifar": (small_cnn, 50),
    "resnet": (lambda: ResNet(depth=18, norm="group"), 4),
}


class Clock(FederatedCallback):
    """Seconds of every round, the device waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self._started = device, list[float](), 0.0

    @override
    def on_round_start(self, round: Round) -> None:
        wait(self.device)
        self._started = time.perf_counter()

    @override
    def on_round_end(self, round: Round) -> None:
        wait(self.device)
        self.seconds.append(time.perf_counter() - self._started)


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def data_of(clients: int) -> FederatedDataModule:
    """Random images."""
    draws = torch.Generator().manual_seed(0)
    count = clients * EXAMPLES
    inputs = torch.randn(count, 3, 32, 32, generator=draws)
    targets = torch.randint(10, (count,), generator=draws)
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    few = torch.utils.data.TensorDataset(inputs[:100], targets[:100])
    return FederatedDataModule(DatasetSource(dataset, few, num_classes=10), IIDPartitioner(), clients, 10)


def fit(
    name: str, options: argparse.Namespace, callbacks: list[FederatedCallback], **settings: Any
) -> FederatedTrainer:
    """A silent run of a workload."""
    make, per_round = WORKLOADS[name]
    per_round = min(per_round, 4) if options.small else per_round
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = FederatedTrainer(
            accelerator=options.accelerator,
            participation=UniformParticipation(per_round),
            local_epochs=1,
            checkpoint=None,
            logger=False,
            callbacks=callbacks,
            check_val_every_n_rounds=10**6,
            default_root_dir=folder,
            enable_progress_bar=False,
            **{"max_rounds": options.rounds + 1, **settings},
        )
        model = Classifier(make(), lr=0.05)
        model.validation_step = None  # type: ignore[method-assign,assignment]
        trainer.fit(model, data_of(2 * per_round))
    return trainer


def measure(name: str, options: argparse.Namespace, **settings: Any) -> tuple[float, float, float]:
    """Median and least seconds of a round, and the device's peak memory in MB."""
    device = torch.device("cuda" if options.accelerator == "gpu" else "cpu")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock = Clock(device)
    fit(name, options, [clock], **settings)
    peak = torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else float("nan")
    return statistics.median(clock.seconds[1:]), min(clock.seconds[1:]), peak


def table_of_speed(options: argparse.Namespace) -> Table:
    """Every workload on both engines and precisions, and cohort sizes; steps recorded and compiled for the largest."""
    device = torch.cuda.get_device_name() if options.accelerator == "gpu" else "cpu"
    table = Table(
        f"Rounds per second on {device}; torch {torch.__version__}, {options.rounds} rounds each",
        ["workload", "engine", "steps", "precision", "cohort", "rounds / s", "ms / round", "peak MB"],
    )
    for name, (_, per_round) in WORKLOADS.items():
        per_round = min(per_round, 4) if options.small else per_round
        sizes = sorted({1, 2, 4, 10, 25, per_round} & set(range(1, per_round + 1)))
        ways: list[tuple[str, int, bool | str]] = [("sequential", 1, steps) for steps in STEPS]
        ways += [("vectorized", size, False) for size in sizes]
        ways += [("vectorized", per_round, steps) for steps in STEPS if steps]
        for precision in ("32-true", "bf16-mixed"):
            for engine, size, steps in ways:
                label = name, engine, STEPS[steps], precision, str(size)
                try:
                    settings = {"engine": engine, "cohort_size": size, "trace_steps": steps, "precision": precision}
                    median, _, peak = measure(name, options, **settings)
                except (torch.OutOfMemoryError, TraceError) as error:
                    table.add(*label, "not compiled" if isinstance(error, TraceError) else "out of memory", "", "")
                    continue
                table.add(*label, f"{1 / median:.2f}", f"{1e3 * median:.1f}", f"{peak:,.0f}")
                print(*table.rows[-1], flush=True)
    return table


class Profile(FederatedCallback):
    """Profiles one round; time in kernels is that of the device, summed."""

    def __init__(self) -> None:
        self.share = float("nan")

    @override
    def on_round_start(self, round: Round) -> None:
        if round.number == 3:
            self._profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            )
            torch.cuda.synchronize()
            self._profiler.__enter__()
            self._started = time.perf_counter()

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number == 3:
            torch.cuda.synchronize()
            elapsed = time.perf_counter() - self._started
            self._profiler.__exit__(None, None, None)
            kernels = [e for e in self._profiler.events() if e.device_type.name == "CUDA"]
            self.share = sum(e.time_range.elapsed_us() for e in kernels) * 1e-6 / elapsed


@contextmanager
def counting_waits() -> Iterator[list[str]]:
    """Where the host waits for the device during local steps, as torch's own check tells it."""
    found: list[str] = []
    train = LocalEngine._train_phase

    def checked(engine: LocalEngine, cohort: Cohort, *arguments: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train(engine, cohort, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found.extend(f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message))

    LocalEngine._train_phase = checked  # type: ignore[method-assign,assignment]
    try:
        yield found
    finally:
        LocalEngine._train_phase = train  # type: ignore[method-assign]


def table_of_waits(options: argparse.Namespace) -> Table:
    """Share of a round's time in kernels, and waits during its local steps."""
    table = Table("Within a round", ["workload", "engine", "share of time in kernels", "waits in local steps", "where"])
    for name in WORKLOADS:
        for engine in ("sequential", "vectorized"):
            profile = Profile()
            fit(name, options, [profile], engine=engine, max_rounds=3)
            with counting_waits() as waits:
                fit(name, options, [], engine=engine, max_rounds=2)
            places = ", ".join(sorted({Path(place).name for place in waits})[:4])
            table.add(name, engine, f"{profile.share:.2f}", str(len(waits)), places)
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds, after one to warm up")
    parser.add_argument("--accelerator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--skip_speed", action="store_true", help="only kernels and waits")
    parser.add_argument("--small", action="store_true", help="4 clients per round")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"))
    options = parser.parse_args(arguments)
    tables = {} if options.skip_speed else {"speed": table_of_speed(options)}
    if options.accelerator == "gpu":
        tables["waits"] = table_of_waits(options)
    for name, table in tables.items():
        table.write(options.output, name)
        table.show()


if __name__ == "__main__":
    main()
