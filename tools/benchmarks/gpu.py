"""Speed on a GPU: engines, steps, precisions, cohort sizes, and whether the host waits for the device in a step.

    python -m tools.benchmarks.gpu
    python -m tools.benchmarks.gpu --accelerator cpu --quick          # a look without a GPU: no results

Random images of CIFAR's shape, all on the device. ``pfl-cifar``: 50 clients per round with 50 examples each, batches of
10, a small CNN (the shape of pfl-research's published benchmark). ``resnet``: ResNet-18 with GroupNorm, 4 clients per
round with 50 examples each. One local epoch of SGD, no evaluation, no logging; a round's time is that from end to end,
with the device waited for. Prints, last, one table of rounds per second and memory, then the share of time in kernels
and the host's waits during local steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lfl.callbacks import FederatedCallback
from lfl.cli.allocator import keep_freed_memory
from lfl.engine import LocalEngine
from lfl.engine.graph.traced import TraceError
from lfl.round import Cohort, Round
from tools.benchmarks.clock import RoundClock
from tools.benchmarks.workloads import WORKLOADS, RandomImages, Workload
from tools.table import Table
from tools.training import fitted

EXAMPLES = 50
NAMES = ("pfl-cifar", "resnet")
STEPS: dict[bool | str, str] = {False: "plain", True: "recorded", "compile": "compiled"}


def workload_of(name: str, options: argparse.Namespace) -> Workload:
    """A workload of the other benchmarks, with twice as many clients as take part, of 50 examples each."""
    known = WORKLOADS[name]
    per_round = min(known.per_round, 4) if options.quick else known.per_round
    clients = 2 * per_round
    return replace(known, source=lambda: RandomImages(clients * EXAMPLES), clients=clients, per_round=per_round)


def fit(name: str, options: argparse.Namespace, callbacks: list[FederatedCallback], **settings: Any) -> None:
    """Run a workload silently."""
    workload = workload_of(name, options)
    model = workload.model()
    model.validation_step = None  # type: ignore[method-assign,assignment]
    common = {
        "accelerator": options.accelerator,
        "max_rounds": options.rounds + 1,
        "participation": workload.participation(),
        "local_epochs": workload.epochs,
        "logger": False,
        "callbacks": callbacks,
        "check_val_every_n_rounds": 10**6,
    }
    with fitted(model, workload.data(), **{**common, **settings}):
        pass


def measure(name: str, options: argparse.Namespace, **settings: Any) -> tuple[float, float, float]:
    """Median and least seconds of a round, and the device's peak memory in MB."""
    device = torch.device("cuda" if options.accelerator == "gpu" else "cpu")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock = RoundClock(device)
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
    kinds, precisions = list(STEPS), ["32-true", "bf16-mixed"]
    if options.quick:  # compiling takes minutes
        kinds, precisions = [False, True], ["32-true"]
    for name in options.workloads:
        per_round = workload_of(name, options).per_round
        sizes = sorted({1, 2, 4, 10, 25, per_round} & set(range(1, per_round + 1)))
        ways: list[tuple[str, int, bool | str]] = [("sequential", 1, steps) for steps in kinds]
        ways += [("vectorized", size, False) for size in sizes]
        ways += [("vectorized", per_round, steps) for steps in kinds if steps]
        for precision in precisions:
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
    """List the places where the host waits for the device during local steps, by torch's own check."""
    places: list[str] = []
    train = LocalEngine._train_phase

    def checked(engine: LocalEngine, cohort: Cohort, *arguments: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train(engine, cohort, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        places.extend(f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message))

    LocalEngine._train_phase = checked  # type: ignore[method-assign,assignment]
    try:
        yield places
    finally:
        LocalEngine._train_phase = train  # type: ignore[method-assign]


def table_of_waits(options: argparse.Namespace) -> Table:
    """Share of a round's time in kernels, and waits during its local steps."""
    table = Table("Within a round", ["workload", "engine", "share of time in kernels", "waits in local steps", "where"])
    for name in options.workloads:
        for engine in ("sequential", "vectorized"):
            profile = Profile()
            fit(name, options, [profile], engine=engine, max_rounds=3)
            with counting_waits() as waits:
                fit(name, options, [], engine=engine, max_rounds=2)
            places = ", ".join(sorted({Path(place).name for place in waits})[:4])
            table.add(name, engine, f"{profile.share:.2f}", str(len(waits)), places)
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, help="timed rounds, after one to warm up; 10")
    parser.add_argument("--accelerator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--skip_speed", action="store_true", help="only kernels and waits")
    parser.add_argument(
        "--quick", action="store_true", help="4 clients per round, 1 round, nothing compiled: no results"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder of the tables' files")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 10)
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    keep_freed_memory()  # as the command line does
    tables = {} if options.skip_speed else {"speed": table_of_speed(options)}
    if options.accelerator == "gpu":
        tables["waits"] = table_of_waits(options)
    for name, table in tables.items():
        table.write(options.output, name)
        table.show()


if __name__ == "__main__":
    main()
