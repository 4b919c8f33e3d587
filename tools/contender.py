"""One run of one contender of ``benchmark.py``, in a process of its own.

The last line it prints is its result as JSON.

python tools/contender.py floor cnn --rounds 5
python tools/contender.py lfl cnn --rounds 5 --settings '{"engine": "sequential"}'
torchrun --nproc_per_node 2 tools/contender.py lfl cnn --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
import warnings
from typing import Any

import torch
from floor import FlatLoop
from typing_extensions import override
from workloads import BATCH_SIZE, LR, WORKLOADS, Workload

from lfl.callbacks import FederatedCallback
from lfl.round import Round
from lfl.trainer import FederatedTrainer


class Clock(FederatedCallback):
    """Seconds from the end of a round to the end of the next: with logging, and all else that a user's run does."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self._last: float | None = None
        self._cpu = 0.0

    @override
    def on_round_start(self, round: Round) -> None:
        if self._last is None:
            self._last, self._cpu = time.perf_counter(), time.process_time()

    @override
    def on_round_end(self, round: Round) -> None:
        now = time.perf_counter()
        assert self._last is not None
        self.seconds.append(now - self._last)
        cpu = time.process_time()
        self.cpu_seconds.append(cpu - self._cpu)
        self._last, self._cpu = now, cpu


def run_floor(workload: Workload, rounds: int) -> dict[str, Any]:
    """The loop by hand."""
    data = workload.data()
    train, test = workload.tensors()
    clients = [data.partition.client(i) for i in range(workload.clients)]
    loop = FlatLoop(workload.model().backbone, train.inputs, train.targets, clients, workload.epochs, BATCH_SIZE, LR)
    seconds, cpu_seconds = [], []
    for participants in workload.participants(rounds).tolist():
        cpu = time.process_time()
        seconds.append(loop.run_round(participants))
        cpu_seconds.append(time.process_time() - cpu)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "accuracy": loop.accuracy(test.inputs, test.targets)}


def run_lfl(workload: Workload, rounds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The trainer, with its logger, ledger and metrics; evaluation after the last round."""
    clock = Clock()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = FederatedTrainer(
            accelerator="cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            max_rounds=rounds,
            participation=workload.participation(),
            local_epochs=workload.epochs,
            checkpoint=None,
            check_val_every_n_rounds=rounds,
            callbacks=[clock],
            default_root_dir=folder,
            enable_progress_bar=False,
            **settings,
        )
        trainer.fit(workload.model(), workload.data())
        accuracy = trainer.summary.last("val_acc")
    peaks = trainer.run.processes.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    engine = trainer.engine
    used = f"{engine.name}, cohorts of {engine.cohort_size}" if engine.name == "vectorized" else engine.name
    return {
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "accuracy": accuracy and accuracy[0],
        "peak_mb": sum(peaks) / 1e3,
        "engine": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=["floor", "lfl"])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", type=json.loads, default={}, help="of the trainer, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    workload = WORKLOADS[options.workload]
    if options.contender == "floor":
        result = run_floor(workload, options.rounds)
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    else:
        result = run_lfl(workload, options.rounds, options.settings)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
