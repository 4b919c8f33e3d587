"""One run of one contender of ``speed``, in a process of its own.

    python -m tools.benchmarks.contender floor cnn --rounds 5
    python -m tools.benchmarks.contender lfl cnn --rounds 5 --settings '{"engine": "sequential"}'
    torchrun --nproc_per_node 2 -m tools.benchmarks.contender lfl cnn --rounds 5

The last line it prints is its result as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

import torch
from torch import distributed

from lfl.cli.allocator import keep_freed_memory
from tools.benchmarks.clock import RoundClock
from tools.benchmarks.flat_loop import FlatLoop
from tools.benchmarks.workloads import BATCH_SIZE, LR, WORKLOADS, Workload
from tools.training import fitted


def run_floor(workload: Workload, rounds: int) -> dict[str, Any]:
    """Run the loop by hand."""
    data = workload.data()
    train, test = workload.tensors()
    clients = [data.partition.client(i) for i in range(workload.clients)]
    loop = FlatLoop(workload.model().backbone, train.inputs, train.targets, clients, workload.epochs, BATCH_SIZE, LR)
    seconds, cpu_seconds = [], []
    for participants in workload.participants(rounds).tolist():
        cpu = time.process_time()
        seconds.append(loop.run_round(participants))
        cpu_seconds.append(time.process_time() - cpu)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "accuracy": loop.accuracy(test.inputs, test.targets),
        "peak_mb": peak_megabytes(),
    }


def run_lfl(workload: Workload, rounds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Run the trainer as the command line does: with logger, ledger and metrics, evaluating after the last round."""
    keep_freed_memory()
    clock = RoundClock()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    common: dict[str, Any] = {
        "devices": processes,
        "strategy": "ddp" if processes > 1 else "auto",
        "max_rounds": rounds,
        "participation": workload.participation(),
        "local_epochs": workload.epochs,
        "check_val_every_n_rounds": rounds,
        "callbacks": [clock],
    }
    with fitted(workload.model(), workload.data(), **common, **settings) as trainer:
        accuracy, engine, peak = trainer.summary.last("val_acc"), trainer.engine, peak_megabytes()
        threads = trainer.run.engine_choice["threads"]
    used = f"{engine.name}, cohorts of {engine.cohort_size}" if engine.name == "vectorized" else engine.name
    used += f", {'recorded' if engine.steps.are_recorded else 'plain'}, threads: {threads}"
    return {
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "accuracy": accuracy and accuracy[0],
        "peak_mb": peak,
        "engine": used,
    }


def peak_megabytes() -> float:
    """Largest resident memory, summed over the processes of this run."""
    peak = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, dtype=torch.float64)
    if distributed.is_initialized():
        distributed.all_reduce(peak)
    return float(peak)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=["floor", "lfl"])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch's threads; without it they are left to `lfl`")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the trainer, as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    workload = WORKLOADS[options.workload]
    if options.contender == "floor":
        result = run_floor(workload, options.rounds)
    else:
        result = run_lfl(workload, options.rounds, options.settings)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
