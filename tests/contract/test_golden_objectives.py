"""Drift correction and server methods on heterogeneous quadratics, against golden/objectives.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import GOLDEN_FILES, Bystander, train

from lfl.aggregation import FedAdagrad, FedAdam, FedExP, FedYogi, MeanAggregator
from lfl.callbacks import FedDC, FedDyn, FedNova, Proximal
from lfl.data import FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.participation import FixedParticipation
from lfl.trainer import FederatedTrainer

GOLDEN = json.loads((GOLDEN_FILES / "objectives.json").read_text())["Q"]
PROBLEM, SCHEDULES, ENTRIES = GOLDEN["problem"], GOLDEN["schedule"], GOLDEN["entries"]
N, D = PROBLEM["N"], PROBLEM["D"]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class FullQuadratic(LightningModule):
    """``1/2 (y - b)^T A (y - b)`` with a full matrix A."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.point = nn.Parameter(tensor(PROBLEM["x0"]))
        self.momentum = momentum

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = batch
        off = self.point - b
        return 0.5 * torch.einsum("bi,bij,bj->b", off, a, off).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)


class WorkAsSizes(FederatedData):
    """Client i has K_i equal examples in batches of one: an epoch is K_i steps on its objective."""

    has_random_transforms = False  # type: ignore[assignment]

    def __init__(self, work: list[int]) -> None:
        super().__init__()
        self.num_clients, self.batch_size, self.num_classes = N, 1, 0
        self.a, self.b = tensor(PROBLEM["A"]), tensor(PROBLEM["b"])
        self.owner = torch.arange(N).repeat_interleave(torch.tensor(work))
        sets = IndexSets(torch.arange(sum(work)), torch.tensor([0, *work]).cumsum(0))
        self.partition = Partition(sets, sets)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        pass

    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.a[self.owner[indices]], self.b[self.owner[indices]]

    gather_test = gather

    def batches(self, plan: Any) -> Iterator[tuple[Tensor, ...]]:
        return (self.gather(indices) for indices, _ in plan)


class Counted(MeanAggregator):
    """Weighs a client, which is told by its steps, by the reference's number of examples."""

    def __init__(self, work: list[int]) -> None:
        super().__init__("examples")
        self.numbers = dict(zip(work, PROBLEM["n"], strict=True))

    def weights(self, num_examples: Tensor) -> Tensor:
        return tensor([self.numbers.get(int(count), 0) for count in num_examples])


class States(Bystander):
    """What the server and its methods hold after every round."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def on_round_end(self, round: Any) -> None:
        everyone, run = torch.arange(N), self.run
        method = run.callbacks[0]
        found: dict[str, Any] = {"x": run.server.vector.clone()}
        if isinstance(method, FedDyn | FedDC):
            parts = [method] if isinstance(method, FedDyn) else method.parts
            found["H"], found["h_i"] = parts[0].drift, run.store.gather("feddyn/moved", everyone)
            if len(parts) > 1:
                found["c"], found["c_i"] = parts[1].control, run.store.gather("scaffold/control", everyone)
        state = next(iter(run.server.optimizer.state.values()), {})
        if state.get("v") is not None:
            # Against the gradient, so that m has the other sign.
            found |= {"v": state["v"].clone()} | ({"m": -state["m"]} if "m" in state else {})
        if "fedexp/eta_g" in round.metrics:
            found["eta_g"] = float(round.metrics["fedexp/eta_g"])
        self.found.append(found)


def adaptive(kind: Any, **settings: Any) -> dict[str, Any]:
    return {"server_optimizer": lambda params: kind(params, lr=0.1, tau=0.1, **settings)}


METHODS: dict[str, tuple[Any, Any]] = {
    "fedexp/uniform_partial": (list, lambda work: {"aggregator": FedExP(eps=1e-3)}),
    "fednova/momentum_ragged_partial": (lambda: [FedNova()], lambda work: {"aggregator": Counted(work)}),
    "fednova/prox_ragged_partial": (lambda: [Proximal(0.5), FedNova()], lambda work: {"aggregator": Counted(work)}),
    "fedadam/uniform_partial_tau0.1": (list, lambda work: adaptive(FedAdam, betas=(0.9, 0.99))),
    "fedyogi/uniform_partial_tau0.1": (list, lambda work: adaptive(FedYogi, betas=(0.9, 0.99))),
    "fedadagrad/uniform_partial_tau0.1": (list, lambda work: adaptive(FedAdagrad)),
    "feddyn/ragged_partial": (lambda: [FedDyn(0.5)], lambda work: {}),
    "feddc/ragged_partial": (lambda: [FedDC(0.5)], lambda work: {}),
}


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", METHODS)
def test_state_after_each_round(name: str, engine: str, tmp_path: Path) -> None:
    entry, (stack, options), states = ENTRIES[name], METHODS[name], States()
    work, rounds = entry["K"], entry["rounds"]
    trainer: FederatedTrainer = train(
        [*stack(), states],
        tmp_path,
        FullQuadratic(entry["hp"]["local_momentum"]),
        WorkAsSizes(work),
        max_rounds=len(rounds),
        local_epochs=1,
        engine=engine,
        participation=FixedParticipation(SCHEDULES[entry["schedule"]]),
        logger=False,
        **options(work),
    )
    assert trainer.current_round == len(rounds) == 6
    for expected, found in zip(rounds, states.found, strict=True):
        values = {"x": expected["x"], **expected["server"], **expected["clients"]}
        values |= {"eta_g": expected["aux"]["eta_g"]} if "eta_g" in found else {}
        assert values.keys() - found.keys() <= {"m"}  # FedAdagrad has none of its own
        for key in values.keys() & found.keys():
            torch.testing.assert_close(tensor_of(found[key]), tensor(values[key]), rtol=0, atol=1e-10)


def tensor_of(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else tensor(value)
