"""The cost of a round beyond its arithmetic.

    python -m tools.benchmarks.overhead ssf-round         # beside the bare tensor operations of the same round
    python -m tools.benchmarks.overhead callbacks         # what a callback adds to a local step
    python -m tools.benchmarks.overhead costs             # microseconds per round, client and step without any work
    python -m tools.benchmarks.overhead costs --quick     # a look, in seconds

``ssf-round``: a round of SSF on the SSF paper's toy problem (d = 100, m = 10, r = 20, 10 of 20 clients, 5 steps), as
``configs/problems/matrix_regression_ssf.yaml`` runs it (metrics, ledger, evaluation every 10 rounds and checkpoints
included), beside the bare tensor operations of the same round. The two take turns in one process, a block of rounds
each, so that whatever else the machine does slows both. Before that, both are run on the same draws and must agree.

``callbacks``: a local step with each method that acts within one (SAM, client momentum, hyperbolic regularizer, ...)
as a ratio to FedAvg's, on both engines: LeNet-5, or McMahan's CNN (``--backbone McMahanCNN``), on MNIST-5000, 4 of 100
clients, batches of 10, 3 epochs. All take turns.

``costs``: seconds per round = a + b clients + c steps, by least squares over a grid, for a model of four numbers the
sum of whose squares is the loss. A step is one of a cohort: on the sequential engine of one client, on the vectorized
engine of 64. Where the time goes is told by cProfile, as shares of a round of the middle of the grid.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from typing_extensions import override

from lfl import models
from lfl.callbacks import (
    MOON,
    AdaptiveSharpnessAware,
    ClientMomentum,
    FedDC,
    FedDyn,
    FederatedCallback,
    FedGen,
    FedNTD,
    HyperbolicRegularization,
    PersonalParameters,
    Proximal,
    Scaffold,
    SharpnessAware,
)
from lfl.cli.allocator import keep_freed_memory
from lfl.data import MNIST5000, DirichletPartitioner, FederatedDataModule
from lfl.models import Classifier
from lfl.participation import UniformParticipation
from lfl.round import Cohort, Round
from tools.benchmarks import ssf_round
from tools.benchmarks.clock import seconds_per_round
from tools.benchmarks.workloads import shared_digits
from tools.table import Table
from tools.training import fitted

ENGINES = ("sequential", "vectorized")
COHORT = 64

# -- callbacks ---------------------------------------------------------------------------------------------------------

STACKS: dict[str, Callable[[], list[FederatedCallback]]] = {
    "FedAvg": list,
    "Proximal": lambda: [Proximal(0.1)],
    "Scaffold": lambda: [Scaffold()],
    "FedDyn": lambda: [FedDyn(0.1)],
    "FedDC": lambda: [FedDC(0.1)],
    "ClientMomentum": lambda: [ClientMomentum(0.1)],
    "SharpnessAware": lambda: [SharpnessAware(0.05)],
    "AdaptiveSharpnessAware": lambda: [AdaptiveSharpnessAware(0.5)],
    "MOON": lambda: [MOON("backbone.features")],
    "FedNTD": lambda: [FedNTD()],
    "FedGen": lambda: [FedGen(server_steps=1)],
    "HyperbolicRegularization": lambda: [HyperbolicRegularization("backbone.features")],
    "SharpnessAware + HyperbolicRegularization": lambda: [
        HyperbolicRegularization("backbone.features"),
        SharpnessAware(0.05),
    ],
    "PersonalParameters": lambda: [PersonalParameters(["*.head.*"])],
}


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


def seconds_per_step(stack: list[FederatedCallback], engine: str, rounds: int, backbone: str = "LeNet5") -> float:
    """Median over rounds after the first of the training time, over the local steps of all its clients."""
    data = FederatedDataModule(MNIST5000(), DirichletPartitioner(0.3), num_clients=100, batch_size=10)
    torch.manual_seed(0)
    times = StepTimes()
    with fitted(
        Classifier(getattr(models, backbone)(), lr=0.02),
        data,
        engine=engine,
        max_rounds=rounds + 1,
        participation=UniformParticipation(4),
        local_epochs=3,
        check_val_every_n_rounds=10**6,
        callbacks=[*stack, times],
    ):
        pass
    return statistics.median(times.seconds[1:])


def table_of_callbacks(rounds: int, repeats: int, backbone: str, names: Sequence[str]) -> Table:
    """The named stacks beside FedAvg, in turns."""
    names = list(dict.fromkeys(["FedAvg", *names]))
    measured: dict[tuple[str, str], list[float]] = {(name, engine): [] for engine in ENGINES for name in names}
    for _ in range(repeats):
        for (name, engine), seconds in measured.items():
            seconds.append(seconds_per_step(STACKS[name](), engine, rounds, backbone))
    table = Table(
        f"A local step of a client, {backbone}, {torch.get_num_threads()} thread(s); medians of {repeats} turns",
        ["callbacks", *(f"us {engine}" for engine in ENGINES), *(f"/ FedAvg {engine}" for engine in ENGINES)],
    )
    for name in names:
        own = [statistics.median(measured[name, engine]) for engine in ENGINES]
        ratios = [
            statistics.median(a / b for a, b in zip(measured[name, e], measured["FedAvg", e], strict=True))
            for e in ENGINES
        ]
        table.add(name, *(f"{1e6 * value:.0f}" for value in own), *(f"{ratio:.2f}" for ratio in ratios))
    return table


# -- costs -------------------------------------------------------------------------------------------------------------


class Empty(LightningModule):
    """A model of four numbers, the sum of whose squares is the loss: a step has a gradient, but next to no work."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(4))

    @override
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        del batch, batch_idx
        return self.numbers.square().sum()

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@dataclass(frozen=True)
class Job:
    """One run of the model without work, on 1,000 clients and batches of one example.

    Attributes:
        engine: sequential or vectorized.
        traced: whether the local step is recorded.
        per_round: clients in a round.
        steps: local steps.
    """

    engine: str
    traced: bool = False
    per_round: int = 10
    steps: int = 1

    def seconds(self, options: argparse.Namespace, profile: cProfile.Profile | None = None) -> float:
        """Seconds of a round."""
        return seconds_per_round(
            Empty(),
            shared_digits(1_000, batch_size=1),
            options.seconds,
            options.clock,
            profile,
            engine=self.engine,
            cohort_size=COHORT,
            trace_steps=self.traced,
            participation=UniformParticipation(self.per_round),
            local_steps=self.steps,
        )


VARIANTS = {
    f"{engine}, traced" if traced else engine: Job(engine, traced) for engine in ENGINES for traced in (False, True)
}

# The stages of a round: functions, and their callers, where only calls from there count.
# "train: gradient" is what the other two leave of the steps.
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "select": (("_select",), ()),
    "download": (("_download",), ()),
    "train: cohorts": (("cohorts", "train", "_load_buffers", "_drop_nonfinite"), ("run_round",)),
    "train: batches": (("of_phase", "reading_ahead"), ("_local_steps",)),
    "train: gradient": (("_train_phase",), ()),
    "train: step": (("step",), ("_take_step",)),
    "upload": (("_upload",), ()),
    "aggregate": (("_aggregate", "_step"), ("run_round",)),
    "evaluate": (("_evaluate",), ("run_round",)),
    "finish": (("_finish",), ("run_round",)),
    "write": (("_write",), ()),
}


@dataclass(frozen=True)
class Cost:
    """Microseconds per round, client and step, and the largest relative error of the fit."""

    round: float
    client: float
    step: float
    error: float


def fit_costs(jobs: Sequence[Job], seconds: Sequence[float]) -> Cost:
    """Fit the costs by least squares on relative errors, so that short rounds count as much as long ones."""
    cohort = {"sequential": 1, "vectorized": COHORT}
    steps = [job.steps * math.ceil(job.per_round / cohort[job.engine]) for job in jobs]
    design = np.array([[1.0, job.per_round, count] for job, count in zip(jobs, steps, strict=True)])
    measured = np.array(seconds)
    fitted_costs = np.linalg.lstsq(design / measured[:, None], np.ones(len(jobs)), rcond=None)[0]
    error = float(np.abs(design @ fitted_costs / measured - 1).max())
    per_round, per_client, per_step = (1e6 * float(value) for value in fitted_costs)
    return Cost(per_round, per_client, per_step, error)


def shares(job: Job, options: argparse.Namespace) -> dict[str, float]:
    """Shares of a round's time by stages, under cProfile; "rest" is the time outside all of them."""
    profile = cProfile.Profile()
    job.seconds(options, profile)
    stats: Any = pstats.Stats(profile)  # whose attributes are not in the types

    def spent(names: Sequence[str], callers: Sequence[str]) -> float:
        """Seconds in functions of these names and below."""
        entries = [entry for (_, _, name), entry in stats.stats.items() if name in names]
        if not callers:
            return sum(float(entry[3]) for entry in entries)
        calls = [call for entry in entries for call in entry[4].items()]
        return sum(float(times[3]) for (_, _, name), times in calls if name in callers)

    spent_in = {stage: spent(*where) for stage, where in STAGES.items()}
    spent_in["train: cohorts"] -= spent_in["train: gradient"]
    spent_in["train: gradient"] -= spent_in["train: batches"] + spent_in["train: step"]
    spent_in["rest"] = stats.total_tt - sum(spent_in.values())
    return {stage: seconds / stats.total_tt for stage, seconds in spent_in.items()}


def table_of_costs(options: argparse.Namespace) -> Table:
    """Fit the costs of the variants, and tell where the time goes."""
    clients, steps = ([1, 8], [1, 4]) if options.quick else ([1, 4, 16, 64], [1, 4, 10])
    middle = (16, 4)
    table = Table(
        f"A model without work, {torch.get_num_threads()} thread(s); shares of a round of {middle[0]} clients, "
        f"{middle[1]} steps each",
        ["", *VARIANTS],
    )
    columns = []
    for variant in VARIANTS.values():
        jobs = [replace(variant, per_round=m, steps=k) for m in clients for k in steps]
        repeats = [[job.seconds(options) for job in jobs] for _ in range(options.repeats)]
        cost = fit_costs(jobs, [min(same) for same in zip(*repeats, strict=True)])
        spent = shares(replace(variant, per_round=middle[0], steps=middle[1]), options)
        columns.append({
            "us per round": f"{cost.round:.0f}",
            "us per client": f"{cost.client:.1f}",
            "us per step of a cohort": f"{cost.step:.0f}",
            "largest error of the fit, %": f"{100 * cost.error:.0f}",
            **{f"{stage}, %": f"{100 * share:.1f}" for stage, share in spent.items()},
        })  # fmt: skip
    for name in columns[0]:
        table.add(name, *(column[name] for column in columns))
    return table


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    parsers = {name: kinds.add_parser(name) for name in ("ssf-round", "callbacks", "costs")}
    ssf, callbacks, costs = parsers.values()
    ssf.add_argument("--rounds", type=int, help="of the trainer; 4,000")
    ssf.add_argument("--block", type=int, help="rounds of one before the other has its turn; 200")
    callbacks.add_argument("--rounds", type=int, help="of each run, after one to warm up; 3")
    callbacks.add_argument("--only", nargs="+", choices=STACKS, default=list(STACKS), help="these; all")
    callbacks.add_argument("--backbone", choices=["LeNet5", "McMahanCNN"], default="LeNet5")
    costs.add_argument("--seconds", type=float, help="of the timed rounds of a run; 0.3")
    costs.add_argument("--clock", choices=["cpu", "wall"], default="cpu", help="seconds of the process, or of a clock")
    for chosen in (callbacks, costs):
        chosen.add_argument("--repeats", type=int, help="turns of every run; 3")
    for chosen in parsers.values():
        chosen.add_argument("--threads", type=int, default=1, help="torch's threads")
        chosen.add_argument("--quick", action="store_true", help="few values, short runs: no results")
        chosen.add_argument("--output", type=Path, default=Path("runs/overhead"), help="folder of the tables' files")
    options = parser.parse_args(arguments)
    defaults: dict[str, tuple[dict[str, float], dict[str, float]]] = {
        "ssf-round": ({"rounds": 4000, "block": 200}, {"rounds": 6, "block": 2}),
        "callbacks": ({"rounds": 3, "repeats": 3}, {"rounds": 1, "repeats": 1}),
        "costs": ({"seconds": 0.3, "repeats": 3}, {"seconds": 0.05, "repeats": 1}),
    }
    full, quick = defaults[options.kind]
    for name, value in (quick if options.quick else full).items():
        setattr(options, name, getattr(options, name) or value)
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    keep_freed_memory()  # as the command line does
    torch.set_num_threads(options.threads)
    if options.kind == "ssf-round":
        table = ssf_round.table_of(options.rounds, options.block)
    elif options.kind == "callbacks":
        table = table_of_callbacks(options.rounds, options.repeats, options.backbone, options.only)
    else:
        table = table_of_costs(options)
    table.show()
    table.write(options.output, options.kind)


if __name__ == "__main__":
    main()
