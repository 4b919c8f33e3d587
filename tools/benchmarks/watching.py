"""The cost of watching: following the module before every round, and taking some steps both ways.

    python -m tools.benchmarks.watching mlp cnn --rounds 100 --pairs 2

Runs with watching and without it in turns, one thread, CPU seconds of all rounds; and, within the runs with it, the
share of CPU seconds that go into watching.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from lfl.engine.training import LocalTraining
from lfl.engine.watch import StepWatch
from tools.benchmarks.clock import RoundClock
from tools.benchmarks.workloads import WORKLOADS, Workload
from tools.training import fitted

_METHODS = ((LocalTraining, "start_round"), (StepWatch, "check"), (StepWatch, "check_descent"))


def run(workload: Workload, rounds: int, settings: dict[str, Any]) -> float:
    """CPU seconds of all rounds of a run."""
    clock = RoundClock()
    options = {"max_rounds": rounds, "participation": workload.participation(), "local_epochs": workload.epochs}
    with fitted(
        workload.model(), workload.data(), check_val_every_n_rounds=rounds, callbacks=[clock], **options, **settings
    ):
        return sum(clock.cpu_seconds)


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Add up the CPU seconds of everything that watches."""

    def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args, **options)
            finally:
                seconds.append(time.process_time() - started)

        return call

    patches = [patch.object(owner, name, clocked(getattr(owner, name))) for owner, name in _METHODS]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


@contextmanager
def unwatched() -> Iterator[None]:
    """Let no step be compared, and no module be looked at."""
    with (
        patch.object(StepWatch, "is_due", lambda *_: False),
        patch.object(LocalTraining, "start_round", lambda *_: None),
    ):
        yield


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds of steps with this in their name, such as recorded")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)
    for name in options.workloads:
        for engine in ("sequential", "vectorized"):
            for trace_steps in (False, True):
                kind = f"{engine}, {'recorded' if trace_steps else 'plain'}"
                if options.only not in kind:
                    continue
                settings = {"engine": engine, "trace_steps": trace_steps}
                ratios, shares = [], []
                for number in range(options.pairs):
                    order = (True, False) if number % 2 == 0 else (False, True)
                    seconds = {}
                    for is_watched in order:
                        watching: list[float] = []
                        with timed(watching) if is_watched else unwatched():
                            seconds[is_watched] = run(WORKLOADS[name], options.rounds, settings)
                        if is_watched:
                            shares.append(sum(watching) / seconds[True])
                    ratios.append(seconds[True] / seconds[False])
                print(
                    f"{name}, {kind}: with / without {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
                    f"{max(ratios):.3f}), share of watching {100 * statistics.median(shares):.2f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
