"""The time it takes to evaluate clients' own models together, as a ratio to one at a time.

    python -m tools.benchmarks.evaluation
    python -m tools.benchmarks.evaluation --clients 100 --repeats 15 --threads 1

Memory is kept by the process, as by the command `lfl`. Both ways take turns, so that what else the machine does falls
on both; the ratio is the median of the turns' ratios. Before the first turn both are run once: what is found out about
a validation step, once a run, is not in the times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lfl.cli.allocator import keep_freed_memory
from lfl.data import MNIST5000, ClassesPerClientPartitioner, DirichletPartitioner, FederatedDataModule, Partitioner
from lfl.engine.evaluation import ClientEvaluator
from lfl.models import MLP, Classifier, LeNet5, McMahanCNN
from lfl.models.backbone import Backbone
from lfl.run import Run
from tools.table import Table
from tools.training import fitted

NETWORKS: dict[str, Callable[[], Backbone]] = {
    "LeNet-5": LeNet5,
    "MLP, 200 hidden": lambda: MLP(784, [200]),
    "McMahan's CNN": McMahanCNN,
}
DEALT: dict[str, Callable[[], Partitioner]] = {
    "2 classes each": lambda: ClassesPerClientPartitioner(2),
    "Dirichlet 0.5": lambda: DirichletPartitioner(0.5),
}


def measured(run: Run, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds to evaluate all clients, each with a model of its own: together, and one at a time, in turns."""
    ids = (run.data.client_test_sizes > 0).nonzero().squeeze(1)
    noise = torch.randn(len(ids), run.layout.dim, generator=torch.Generator().manual_seed(0))
    params = run.server.vector + 0.01 * noise
    together, alone = (ClientEvaluator(run.model, run.data, run.server, run.processes, run.seed) for _ in range(2))
    alone.way = "alone"
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        results = []
        for evaluator, times in zip((together, alone), seconds, strict=True):
            started = time.perf_counter()
            results.append(evaluated(run, evaluator, ids, params))
            if turn:
                times.append(time.perf_counter() - started)
        for one, other in zip(*results, strict=True):
            if any(abs(one[name] - other[name]) > 1e-4 for name in other):
                raise AssertionError(f"{one} together is {other} alone.")
    return seconds


def evaluated(run: Run, evaluator: ClientEvaluator, ids: Tensor, params: Tensor) -> list[dict[str, float]]:
    """As a scope is evaluated, so many clients at a time."""
    size, found = run.evaluated_at_once, []
    for some, rows in zip(ids.split(size), params.split(size), strict=True):
        found += evaluator(some, rows, run.client_buffers(some))
    return found


def table_of(clients: int, repeats: int, names: list[str]) -> Table:
    """Measure every network on every partition."""
    table = Table(
        f"Evaluation of {clients} clients' own models, {torch.get_num_threads()} thread(s), {repeats} turns",
        ["", "clients' data", "together, ms", "one at a time, ms", "ratio", "least", "most"],
    )
    for name in names:
        for dealt, partitioner in DEALT.items():
            data = FederatedDataModule(MNIST5000(), partitioner(), num_clients=clients, batch_size=10)
            with fitted(Classifier(NETWORKS[name](), lr=0.1), data, max_rounds=0, engine="sequential") as trainer:
                together, alone = measured(trainer.run, repeats)
            ratios = [slow / fast for fast, slow in zip(together, alone, strict=True)]
            cells = [f"{1e3 * statistics.median(times):.0f}" for times in (together, alone)]
            cells += [f"{value:.2f}" for value in (statistics.median(ratios), min(ratios), max(ratios))]
            table.add(name, dealt, *cells)
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=15, help="turns")
    parser.add_argument("--threads", type=int, default=1, help="of torch; lfl's runs have one unless more pay")
    parser.add_argument("--output", type=Path, default=Path("runs/evaluation"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    table = table_of(options.clients, options.repeats, options.networks)
    table.show()
    table.write(options.output)


if __name__ == "__main__":
    main()
