"""Run by torchrun in test_processes.py: every method, in as many processes as there are."""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from contract.empty import SOMETIMES, sometimes
from contract.methods import METHODS, train_method
from torchmetrics.classification import MulticlassAccuracy
from worlds import Bystander, Quadratic, QuadraticData, batch_norm, even_data, mlp, ragged_data, train, train_quadratic

from lfl.aggregation import MeanAggregator
from lfl.callbacks import ClientEvaluation, FederatedCallback, GradientNormStages, PersonalParameters, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.engine import LocalPhase
from lfl.models import Classifier
from lfl.participation import (
    DoublingParticipation,
    FixedParticipation,
    FullParticipation,
    HeldOutParticipation,
    UniformParticipation,
)
from lfl.processes.group import Processes
from lfl.processes.sums import ProcessSums
from lfl.reporting.client_table import read_clients
from lfl.round import Cohort, Round
from lfl.scopes import ScopeName
from lfl.system import ExponentialSpeeds
from lfl.trainer import FederatedTrainer


def run(method: str, folder: Path, devices: int, **options: object) -> FederatedTrainer:
    settings = {
        "checkpoint": Checkpointing(every_n_rounds=2),
        "check_val_every_n_rounds": 1,
        "cohort_size": 2,
        **options,
    }
    return train_method(method, folder / method, mlp(dropout=0.3), engine="vectorized", devices=devices, **settings)


def summary(trainer: FederatedTrainer) -> dict[str, object]:
    found = {name: trainer.summary.last(name) for name in ("train/loss", "train_acc", "val_acc", "val_loss")}
    return {"vector": trainer.server.vector, "ledger": trainer.ledger.metrics(), **found}


def few_clients(folder: Path, devices: int, callbacks: list[FederatedCallback]) -> FederatedTrainer:
    """Rounds in which a process has no client."""
    return train(
        callbacks,
        folder / f"few-{len(callbacks)}",
        devices=devices,
        max_rounds=5,
        participation=FixedParticipation([[2], [0, 4], [1, 6], [3]]),
        check_val_every_n_rounds=1,
    )


def in_stages(folder: Path, devices: int) -> dict[str, Any]:
    """Stages that a callback ends by a sum over all clients."""
    options: dict[str, Any] = {"participation": DoublingParticipation(initial=1, rounds_per_stage=None)}
    trainer = train(
        [GradientNormStages(mu=30.0)], folder / "stages", devices=devices, system=ExponentialSpeeds(), **options
    )
    return {"vector": trainer.server.vector, "stages": options["participation"].stages_ended}


def in_scopes(folder: Path, devices: int) -> dict[str, Any]:
    """Two rounds of FedRep without two of the clients, and what every client is evaluated to."""
    scopes: list[ScopeName] = ["server", "personal", "fine_tuned", "new"]
    trainer = train(
        [PersonalParameters(["*.head.*"]), ClientEvaluation(1, [LocalPhase(["*.head.*"], lr=0.05)], scopes=scopes)],
        folder / "scopes",
        engine="vectorized",
        devices=devices,
        max_rounds=2,
        participation=HeldOutParticipation(0.25, UniformParticipation(4)),
    )
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if "/val" in name}
    return {"rows": list(read_clients(Path(trainer.log_dir) / "clients.csv")), "metrics": metrics}


def with_buffers(folder: Path, devices: int) -> FederatedTrainer:
    participation = FixedParticipation([[0, 2], [1], [0, 1, 3]])
    return train([], folder / "buffers", batch_norm(), even_data(5), devices=devices, participation=participation)


class Measured(Classifier):
    """Logs Metric objects in training and validation; some process has nothing to update them with."""

    def __init__(self) -> None:
        super().__init__(mlp().backbone, lr=0.1)
        self.train_accuracy = MulticlassAccuracy(4, average="micro")
        self.accuracy = MulticlassAccuracy(4, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.train_accuracy.update(self(batch[0]), batch[1])
        self.log("measured_train", self.train_accuracy)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy.update(self(batch[0]), batch[1])
        self.log("measured", self.accuracy)


def with_metrics(folder: Path, devices: int) -> dict[str, Any]:
    """The validation set is one batch, and each round has one client."""
    participation = FixedParticipation([[2], [5], [1]])
    options = {"participation": participation, "check_val_every_n_rounds": 1, "devices": devices}
    trainer = train([], folder / "metrics", Measured(), ragged_data(), **options)
    return {name: trainer.summary.last(name) for name in ("measured_train", "measured")}


class Median(MeanAggregator):
    """Keeps rows beside its sums."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        super().add(rows, weights)
        self.rows.append(rows.double())

    def result(self) -> torch.Tensor:
        return torch.cat(self.rows).median(dim=0).values


ROBUST = ("median", "geometric-median", "norm-clipping", "krum+top-k", "fedrep+trimmed-mean")


def to_the_bit(method: str, folder: Path, devices: int) -> torch.Tensor:
    """One client at a time, so that every client's update is the same; in float32, where a sum of float64s is too."""
    options = {"precision": "32-true", "devices": devices}
    return train_method(method, folder / f"{method}-alone", **options).server.vector


def without_clients(method: str, folder: Path, devices: int) -> dict[str, object]:
    """Nobody takes part in rounds 1 and 3."""
    folder = folder / "nobody"
    options = {"participation": sometimes(method), "max_rounds": 5, "devices": devices, "cohort_size": 2}
    trainer = train(METHODS[method](), folder / method, mlp(dropout=0.3), engine="vectorized", **options)
    return {"vector": trainer.server.vector, "ledger": trainer.ledger.metrics()}


class Stop(Bystander):
    """One process asks for the end in round 2, before or after the sums of that round met."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_cohort_end(self, cohort: Cohort) -> None:
        self._stop(cohort.round, "on_cohort_end")

    def on_round_end(self, round: Round) -> None:
        self._stop(round, "on_round_end")

    def _stop(self, round: Round, hook: str) -> None:
        processes = self.run.processes
        if hook == self.hook and round.number == 2 and processes.rank == processes.count - 1:
            self.run.stop()


class Late(Bystander):
    """Declares its slot when it is too late."""

    def on_cohort_end(self, cohort: Cohort) -> None:
        self.run.store.declare("late", 1, torch.float64)


class Record(FederatedCallback):
    """Who trained whom, and the collectives of each round."""

    def __init__(self, calls: Counter[str]) -> None:
        self.calls, self.clients, self.counts = calls, list[list[int]](), list[dict[str, int]]()

    def on_round_start(self, round: Round) -> None:
        self.clients.append(round.local_clients.tolist())
        self.counts.append(dict(self.calls))
        self.calls.clear()


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the collectives; those that others are made of count as well."""
    calls: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather", "all_gather_object", "barrier", "broadcast"):
            original = getattr(torch.distributed, name)

            def count(*args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
                calls[name] += 1
                return original(*args, **options)

            patch.setattr(torch.distributed, name, count)
        yield calls


def dealt(folder: Path, devices: int, callbacks: list[FederatedCallback]) -> dict[str, Any]:
    """Who trains whom, and what is said in a round, with very different numbers of steps."""
    with counted() as calls:
        record = Record(calls)
        trainer = train([record, *callbacks], folder / f"dealt-{len(callbacks)}", devices=devices, max_rounds=4)
    steps = trainer.run.work.num_steps(trainer.data.client_sizes, trainer.data.batch_size)
    return {
        "clients": trainer.run.processes.gather(record.clients),
        "counts": record.counts[2:],  # of rounds 2 and 3
        "steps": steps.tolist(),
    }


def sums_of(processes: Processes) -> list[dict[str, Any]]:
    """What each of several joins gives, and its collectives; process r brings r + 1."""
    rank = processes.rank
    mine = torch.full((3,), rank + 1.0, dtype=torch.float64)
    one = mine[0]
    turns: list[dict[str, torch.Tensor]] = [
        {"a": mine, "b": one},
        {"b": one, "a": mine},  # as before, in another order
        {"a": mine} if rank else {},  # one has nothing
        {"a": mine},  # b is forgotten
        {"a": mine, "c": one} if rank else {"a": mine},  # one has something new
        {"a": mine[:2], "c": one},  # another shape
        {},
        {"a": mine},
    ]
    sums, found = ProcessSums(processes), []
    for turn in turns:
        with counted() as calls:
            joined = sums.join(turn)
        found.append({"joined": {name: value.tolist() for name, value in joined.items()}, "calls": dict(calls)})
    return found


def quadratic(folder: Path, **options: Any) -> FederatedTrainer:
    return train_quadratic([], folder / "quadratic", participation=FullParticipation(), max_rounds=20, **options)[0]


def writes_of(folder: Path) -> list[str]:
    """Fills up with what this process writes, makes or renames below a folder from now on."""
    found: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(folder) in str(args[0]):
            found.append(f"{event} {args[0]}")

    sys.addaudithook(watch)
    return found


def on_one_machine(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {method: summary(run(method, folder, devices=2)) for method in METHODS}
    results["resumed"] = summary(run("scaffold-2", folder, devices=2, max_rounds=5, ckpt_path="last"))
    results["resumed twice"] = summary(run("scaffold-2", folder, devices=2, max_rounds=7, ckpt_path="last"))
    results["few"] = few_clients(folder, 2, []).server.vector
    results["few with state"] = few_clients(folder, 2, [Scaffold()]).server.vector
    results["stages"] = in_stages(folder, 2)
    results["metrics"] = with_metrics(folder, 2)
    results["buffers"] = with_buffers(folder, 2).server_state_dict()
    results["scopes"] = in_scopes(folder, 2)
    results["dealt"] = dealt(folder, 2, [])
    results["at home"] = dealt(folder, 2, [Scaffold()])
    results["nobody"] = {method: without_clients(method, folder, 2) for method in SOMETIMES}
    results["to the bit"] = {method: to_the_bit(method, folder, 2) for method in (*ROBUST, "dp-fedavg", "local-noise")}
    with pytest.raises(ValueError, match="Median cannot be used on several processes"):
        train([], folder / "median", devices=2, aggregator=Median())
    for hook in ("on_cohort_end", "on_round_end"):
        results[hook] = train([Stop(hook)], folder / hook, devices=2, max_rounds=6).current_round
    with pytest.raises(RuntimeError, match=r"late.*declare them in `on_run_start`"):
        train([Late()], folder / "late", devices=2)
    trainer = quadratic(folder, devices=2)
    results["sums"] = sums_of(trainer.run.processes)
    return results


def on_two_nodes(folder: Path) -> dict[str, Any]:
    written = writes_of(folder)
    options = {"devices": 1, "num_nodes": 2}
    trainers = {method: run(method, folder, **options) for method in ("fedavg", "scaffold-2")}
    trainers["quadratic"] = quadratic(folder, data=QuadraticData(7), module=Quadratic(), **options)
    vectors = {name: trainer.server.vector for name, trainer in trainers.items()}
    return {"vectors": vectors, "writers": trainers["fedavg"].run.processes.gather(written)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = {"machine": on_one_machine, "nodes": on_two_nodes}[sys.argv[1]](Path(sys.argv[2]))
    if torch.distributed.get_rank() == 0:
        torch.save(results, Path(sys.argv[2]) / "results.pt")
