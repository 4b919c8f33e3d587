"""How fast `lfl` is: beside loops by hand, beside other simulators, and beside the same arithmetic without a trainer.

    python tools/benchmark.py cnn mlp many-small resnet pfl-cifar
    python tools/benchmark.py cnn --peers pfl=PYTHON flower=PYTHON blazefl=PYTHON
    python tools/benchmark.py ssf-round
    python tools/benchmark.py ssf-round --rounds 4000 --threads 1
    python tools/benchmark.py parts

``cnn``, ``mlp``, ``many-small``, ``resnet``, ``pfl-cifar`` (``workloads.py``): federated averaging by `lfl` in several
ways, with its logger, ledger and metrics, beside the floor (``floor.py``: one network, flat parameters, data as
tensors, ``autograd.grad``, a foreach step, one thread, no framework) and beside the simulators whose Python ``--peers``
names (``peers/``). Each runs in processes of its own, all in turns, with the same clients in the same rounds.

``ssf-round``: a round of SSF on the SSF paper's toy problem (d = 100, m = 10, r = 20, 10 of 20 clients, 5 steps), as
``configs/problems/matrix_regression_ssf.yaml`` runs it (metrics, ledger, evaluation every 10 rounds and checkpoints
included), beside the bare tensor operations of the same round. The two take turns in one process, a block of rounds
each, so that whatever else the machine does slows both. Before that, both are run on the same draws and must agree.

``parts``: a local step with each part that can be put into one (SAM, client momentum, hyperbolic regulariser, ...) as a
ratio to FedAvg's, on both engines: LeNet-5, or McMahan's CNN (``--backbone McMahanCNN``), on MNIST-5000, 4 of 100
clients, batches of 10, 3 epochs. All take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bare_ssf import BareSSF, Draws, random_draws
from report import Table
from speed import table_of
from typing_extensions import override
from workloads import WORKLOADS

from lfl import models
from lfl.aggregation import MeanAggregator
from lfl.callbacks import (
    SSF,
    ClientMomentum,
    FederatedCallback,
    HyperbolicRegularization,
    PersonalParameters,
    Proximal,
    Scaffold,
    SharpnessAware,
)
from lfl.checkpointing import Checkpointing
from lfl.data import MNIST5000, DirichletPartitioner, FederatedDataModule
from lfl.federation import Federation
from lfl.models import Classifier
from lfl.participation import UniformParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.randomness import client_keys, generator, random_bits
from lfl.round import Cohort, Round
from lfl.subspace import LayerwiseSubspace
from lfl.subspace.base import orthonormal_rows
from lfl.trainer import FederatedTrainer

ENGINES = ("sequential", "vectorized")
RANK, CLIENTS, STEPS, BLOCK = 20, 10, 5, 200


class Turns(FederatedCallback):
    """Runs a block of bare rounds after each block of the trainer's, and times both.

    Args:
        bare: the bare rounds.
        block: rounds in a block.
    """

    def __init__(self, bare: BareSSF, block: int) -> None:
        self.bare, self.block = bare, block
        self.trainer_ms: list[float] = []
        self.bare_ms: list[float] = []
        self._started = 0.0

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number % self.block:
            return
        now = time.perf_counter()
        for number in range(self.block):
            self.bare.run_round(number + 1)
        end = time.perf_counter()
        if round.number > self.block:  # the first block warms up
            self.trainer_ms.append(1e3 * (now - self._started) / self.block)
            self.bare_ms.append(1e3 * (end - now) / self.block)
        self._started = time.perf_counter()


class SameRounds(FederatedCallback):
    """Runs every bare round on the trainer's draws, and keeps the largest difference of x.

    Args:
        bare: the bare rounds.
    """

    def __init__(self, bare: BareSSF) -> None:
        self.bare, self.largest_difference = bare, 0.0

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        self.bare.run_round(round.number)
        difference = self.federation.server.vector - self.bare.x.flatten()
        self.largest_difference = max(self.largest_difference, float(difference.abs().max()))


def trainer_draws(data: MatrixRegressionData, seed: int) -> Callable[[int], Draws]:
    """The draws of the trainer's rounds."""
    participation = UniformParticipation(CLIENTS)

    def draw(number: int) -> Draws:
        basis = orthonormal_rows(RANK, data.dim, generator(seed, "subspace", number - 1, "weight"))
        clients = participation.select(number, data.num_clients, seed)
        bits = random_bits(client_keys(clients, seed, "shuffle", number), STEPS * data.batch_size)
        examples = (bits % data.examples_per_client).view(CLIENTS, STEPS, data.batch_size)
        return Draws(basis, clients, examples + data.examples_per_client * clients[:, None, None])

    return draw


def fit(callback: FederatedCallback, data: MatrixRegressionData, rounds: int) -> None:
    """The rounds of ``configs/problems/matrix_regression_ssf.yaml``."""
    with tempfile.TemporaryDirectory() as folder:
        FederatedTrainer(
            accelerator="cpu",
            precision="64-true",
            engine="vectorized",
            trace_steps=True,
            max_rounds=rounds,
            checkpoint=Checkpointing(every_n_rounds=500),
            check_val_every_n_rounds=10,
            participation=UniformParticipation(CLIENTS),
            local_steps=STEPS,
            local_sampling="replacement",
            aggregator=MeanAggregator("uniform"),
            callbacks=[SSF(LayerwiseSubspace(RANK)), callback],
            default_root_dir=folder,
            enable_progress_bar=False,
        ).fit(MatrixRegression(), data)


def ssf_round(rounds: int, block: int) -> Table:
    """Check that both compute the same, then time them in turns."""
    data, model = MatrixRegressionData(), MatrixRegression()
    data.setup("fit")
    same = SameRounds(BareSSF(model, data, trainer_draws(data, seed=0)))
    fit(same, data, 20)
    if same.largest_difference > 1e-10:
        raise AssertionError(f"The bare rounds differ from the trainer's by {same.largest_difference:.3g}.")
    turns = Turns(BareSSF(model, data, random_draws(data, RANK, CLIENTS, STEPS, seed=0)), block)
    fit(turns, data, rounds)
    ratios = [ours / bare for ours, bare in zip(turns.trainer_ms, turns.bare_ms, strict=True)]
    table = Table(
        f"A round of SSF on the toy problem, ms; {torch.get_num_threads()} thread(s), blocks of {block} rounds in "
        f"turns; the two differ by {same.largest_difference:.1g} after 20 rounds",
        ["", "median", "least", "most"],
    )
    for name, values in (("bare tensor operations", turns.bare_ms), ("lfl", turns.trainer_ms), ("ratio", ratios)):
        table.add(name, *(f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))))
    return table


PARTS: dict[str, Callable[[], list[FederatedCallback]]] = {
    "FedAvg": list,
    "Proximal": lambda: [Proximal(0.1)],
    "Scaffold": lambda: [Scaffold()],
    "ClientMomentum": lambda: [ClientMomentum(0.1)],
    "SharpnessAware": lambda: [SharpnessAware(0.05)],
    "HyperbolicRegularization": lambda: [HyperbolicRegularization("backbone.features")],
    "SharpnessAware + HyperbolicRegularization": lambda: [
        HyperbolicRegularization("backbone.features"),
        SharpnessAware(0.05),
    ],
    "PersonalParameters": lambda: [PersonalParameters(["*.head.*"])],
}


def seconds_per_step(stack: list[FederatedCallback], engine: Any, rounds: int, backbone: str = "LeNet5") -> float:
    """Median over rounds after the first of the training time, over the local steps of all its clients."""
    data = FederatedDataModule(MNIST5000(), DirichletPartitioner(0.3), num_clients=100, batch_size=10)
    torch.manual_seed(0)
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        FederatedTrainer(
            accelerator="cpu",
            engine=engine,
            max_rounds=rounds + 1,
            participation=UniformParticipation(4),
            local_epochs=3,
            checkpoint=None,
            check_val_every_n_rounds=10**6,
            callbacks=[*stack, times],
            default_root_dir=folder,
            enable_progress_bar=False,
        ).fit(Classifier(getattr(models, backbone)(), lr=0.02), data)
    return statistics.median(times.seconds[1:])


class StepTimes(FederatedCallback):
    """The training time of each round over its local steps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._steps = 0

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        self._steps += int(cohort.num_steps.sum())

    @override
    def on_round_end(self, round: Round) -> None:
        self.seconds.append(float(round.metrics["time/train_s"]) / self._steps)
        self._steps = 0


def parts(rounds: int, repeats: int, backbone: str) -> Table:
    """Every part beside FedAvg, in turns."""
    measured: dict[tuple[str, str], list[float]] = {(name, engine): [] for engine in ENGINES for name in PARTS}
    for _ in range(repeats):
        for (name, engine), found in measured.items():
            found.append(seconds_per_step(PARTS[name](), engine, rounds, backbone))
    table = Table(
        f"A local step of a client, {backbone}, {torch.get_num_threads()} thread(s); medians of {repeats} turns",
        ["part", *(f"us {engine}" for engine in ENGINES), *(f"/ FedAvg {engine}" for engine in ENGINES)],
    )
    for name in PARTS:
        own = [statistics.median(measured[name, engine]) for engine in ENGINES]
        ratios = [
            statistics.median(a / b for a, b in zip(measured[name, e], measured["FedAvg", e], strict=True))
            for e in ENGINES
        ]
        table.add(name, *(f"{1e6 * value:.0f}" for value in own), *(f"{ratio:.2f}" for ratio in ratios))
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=[*WORKLOADS, "ssf-round", "parts"])
    parser.add_argument("--rounds", type=int, help="of each run; the first ones are not timed")
    parser.add_argument("--backbone", choices=["LeNet5", "McMahanCNN"], default="LeNet5", help="of the parts")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every part or contender")
    parser.add_argument("--block", type=int, default=BLOCK, help="rounds of one before the other has its turn")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, of ssf-round and parts")
    parser.add_argument("--peers", nargs="*", default=[], help="NAME=PYTHON of pfl, flower, blazefl where installed")
    parser.add_argument("--only", nargs="*", default=[], help="contenders whose name has one of these in it")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark"), help="folder of the tables' files")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    peers = dict(pair.split("=", 1) for pair in options.peers)
    for name in options.workloads:
        if name == "parts":
            table = parts(options.rounds or 3, options.repeats, options.backbone)
        elif name == "ssf-round":
            table = ssf_round(options.rounds or 4000, options.block)
        else:
            table = table_of(name, options.rounds, options.repeats, peers, options.only)
        table.show()
        table.write(options.output, name)


if __name__ == "__main__":
    main()
