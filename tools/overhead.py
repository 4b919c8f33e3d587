"""What a round of `lfl` costs beside a loop written by hand, and whether both give the same bits.

    python tools/overhead.py
    python tools/overhead.py --rounds 200 --engine vectorized

FedAvg on the sequential engine against ``loop_baseline.py``, on the same clients, shuffles and initial weights. The two
take turns in one process, a round each, so that whatever else the machine does slows both; the ratio is the median over
rounds of the paired ratios. Evaluation, logging and checkpoints are not counted: the loop has none.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from loop_baseline import FedAvgLoop
from report import Table
from typing_extensions import override

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FederatedCallback
from lfl.data import MNIST5000, Digits, DirichletPartitioner, FederatedDataModule
from lfl.federation import Federation
from lfl.models import MLP, Classifier, McMahanCNN
from lfl.participation import UniformParticipation
from lfl.round import Round
from lfl.trainer import FederatedTrainer

LR = 0.05


class TakeTurns(FederatedCallback):
    """Runs a round of the loop after each round of the trainer, and compares times and parameters.

    Args:
        loop: the loop, at the same start.
    """

    def __init__(self, loop: FedAvgLoop) -> None:
        self.loop = loop
        self.trainer_seconds: list[float] = []
        self.loop_seconds: list[float] = []
        self.largest_difference = 0.0

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        started = time.perf_counter()
        expected = self.loop.run_round(round.number)
        self.loop_seconds.append(time.perf_counter() - started)
        self.trainer_seconds.append(float(round.metrics["time/train_s"]))
        difference = float((self.federation.server.vector - expected).abs().max())
        self.largest_difference = max(self.largest_difference, difference)


def model_and_data(name: str) -> tuple[Classifier, FederatedDataModule]:
    """The MLP on digits, or McMahan's CNN on MNIST-5000, with 100 heterogeneous clients."""
    torch.manual_seed(0)
    if name == "mlp":
        backbone, source = MLP(in_features=64, hidden=[64]), Digits()
        return Classifier(backbone, lr=LR), FederatedDataModule(source, DirichletPartitioner(0.3), 100, 10)
    return Classifier(McMahanCNN(), lr=LR), FederatedDataModule(MNIST5000(), DirichletPartitioner(0.3), 100, 10)


def measure(name: str, rounds: int, weighted: bool, engine: Any = "sequential") -> TakeTurns:
    """Both, in turns, for ``rounds`` rounds."""
    model, data = model_and_data(name)
    data.setup("fit")
    participation = UniformParticipation(clients_per_round=10)
    loop = FedAvgLoop(copy.deepcopy(model.backbone), data, LR, weighted=weighted, participation=participation)
    turns = TakeTurns(loop)
    with tempfile.TemporaryDirectory() as folder:
        FederatedTrainer(
            accelerator="cpu",
            max_rounds=rounds,
            participation=participation,
            engine=engine,
            aggregator=MeanAggregator("examples" if weighted else "uniform"),
            callbacks=[turns],
            checkpoint=None,
            check_val_every_n_rounds=rounds,
            default_root_dir=folder,
            enable_progress_bar=False,
        ).fit(model, data)
    return turns


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["mlp", "cnn"], default=["mlp", "cnn"])
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each; the first is not timed")
    parser.add_argument("--engine", choices=["sequential", "vectorized"], default="sequential")
    parser.add_argument("--output", type=Path, default=Path("runs/overhead"), help="folder of the table's files")
    options = parser.parse_args(arguments)
    table = Table(
        f"A round of lfl ({options.engine}) beside the loop by hand; {torch.get_num_threads()} thread(s)",
        ["model", "weights", "loop ms", "lfl ms", "ratio", "largest difference"],
    )
    for name in options.models:
        for weighted in (True, False):
            turns = measure(name, options.rounds, weighted, options.engine)
            ours, loops = turns.trainer_seconds[1:], turns.loop_seconds[1:]
            ratio = statistics.median(a / b for a, b in zip(ours, loops, strict=True))
            medians = [f"{1000 * statistics.median(seconds):.2f}" for seconds in (loops, ours)]
            weights = "examples" if weighted else "uniform"
            table.add(name, weights, *medians, f"{ratio:.2f}", f"{turns.largest_difference:.3g}")
    table.show()
    table.write(options.output)


if __name__ == "__main__":
    main()
