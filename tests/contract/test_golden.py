"""Rounds on a small matrix regression against an independent float64 reference, golden/ssf.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import GOLDEN_FILES, train

from lfl.callbacks import SSF, FedSub, Scaffold
from lfl.data import FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.participation import FixedParticipation
from lfl.round import Cohort, Round
from lfl.subspace import Basis, IdentitySubspace, Subspace
from lfl.subspace.layerwise import Layer, LayerwiseBasis
from lfl.trainer import FederatedTrainer

GOLDEN = json.loads((GOLDEN_FILES / "ssf.json").read_text())
SIZES, HYPER = GOLDEN["sizes"], GOLDEN["hyper"]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class MatrixRegression(LightningModule):
    """``1/(2 n) |A X - B|^2 + lam/2 |X|^2``; the ridge as weight decay, which belongs to the objective."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(tensor(GOLDEN["x0"]))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = batch
        return 0.5 * ((a @ self.x - b) ** 2).sum() / len(a)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=HYPER["eta_l"], weight_decay=HYPER["lam"])


class GoldenData(FederatedData):
    """Hands out the reference's batches, whatever is asked for; cohorts must come one client at a time, in order."""

    has_random_transforms = False  # type: ignore[assignment]

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.num_clients, self.batch_size, self.num_classes = SIZES["N"], SIZES["n"], 0
        self.a, self.b = tensor(GOLDEN["A"]).flatten(0, 1), tensor(GOLDEN["B"]).flatten(0, 1)
        sets = IndexSets(torch.arange(len(self.a)), torch.arange(SIZES["N"] + 1) * SIZES["n"])
        self.partition = Partition(sets, sets)
        self.visits: Iterator[list[Any]] | None = None
        if case["batches"] is not None:
            self.visits = iter(
                [rows[str(i)], i]
                for rows, ids in zip(case["batches"], case["clients_per_round"], strict=True)
                for i in ids
            )

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        pass

    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.a[indices], self.b[indices]

    gather_test = gather

    def batches(self, plan: Any) -> Iterator[tuple[Tensor, ...]]:
        asked = [indices for indices, _ in plan]
        if self.visits is not None and len(asked) == SIZES["K"]:
            rows, client = next(self.visits)
            return iter([self.gather(torch.tensor([[client * SIZES["n"] + j for j in step]])) for step in rows])
        return iter([self.gather(indices) for indices in asked])


class GoldenSubspace(Subspace):
    """The reference's bases, by the number of the refresh."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def check(self, layout: Any) -> int:
        return SIZES["r"] * SIZES["m"]

    def draw(self, layout: Any, address: Any, device: Any, dtype: Any) -> Basis:
        return LayerwiseBasis([Layer(tensor(GOLDEN["P"][self.order[address[-1]]]), SIZES["m"])])


FEDSUB_ORDER = list(dict.fromkeys(GOLDEN["P_use"]["fedsub_P_index"]))
STACKS = {
    "full_fedavg": list,
    "full_scaffold": lambda: [Scaffold("II")],
    "full_scaffold_option_I": lambda: [Scaffold("I")],
    "ssf": lambda: [SSF(GoldenSubspace(list(range(5))))],
    "ssf_paper_c": lambda: [SSF(GoldenSubspace(list(range(5))), control_update="sampled_mean")],
    "ssf_P_identity": lambda: [SSF(IdentitySubspace())],
    "fedsub": lambda: [FedSub(GoldenSubspace(FEDSUB_ORDER), refresh_every=2)],
}
CASES = [(case, method) for case, found in GOLDEN["cases"].items() for method in found["methods"] if method in STACKS]


@pytest.mark.parametrize("rounds", range(1, 6))
@pytest.mark.parametrize(("case", "method"), CASES)
def test_state_after_each_round(case: str, method: str, rounds: int, tmp_path: Path) -> None:
    found = GOLDEN["cases"][case]
    trainer = train(
        STACKS[method](),
        tmp_path,
        MatrixRegression(),
        GoldenData(found),
        max_rounds=rounds,
        local_steps=SIZES["K"],
        participation=FixedParticipation(found["clients_per_round"]),
        logger=False,
    )
    expected = found["methods"][method][rounds - 1]
    close(trainer.server.vector, expected["x"])
    if "c" in expected:
        close(trainer.stack[0].control, expected["c"])
        slot = "scaffold/control" if "scaffold" in method else "ssf/control"
        close(trainer.store.gather(slot, torch.arange(SIZES["N"])), expected["ci"])
    if "lam_i" in expected:
        close(carried_duals(trainer, rounds), expected["lam_i"])


def carried_duals(trainer: FederatedTrainer, rounds: int) -> Tensor:
    """All duals in the basis of the last round: what a cohort of all clients would start with in it."""
    everyone, nothing = torch.arange(SIZES["N"]), torch.empty(0)
    last = Round(rounds, everyone, trainer.server.vector, everyone, everyone)
    cohort = Cohort(last, everyone, everyone, everyone, nothing, nothing)
    trainer.stack[0].on_cohort_start(cohort)
    return cohort.rows["dual"]


def close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.flatten(), tensor(expected).flatten(), rtol=0, atol=1e-10)


def test_floats_on_the_wire(tmp_path: Path) -> None:
    """Per client and round, full participation, after the first: D = 12, R = 4, in float64."""
    found = GOLDEN["cases"]["full"]
    counts = GOLDEN["communication"]
    expected = {
        "full_fedavg": counts["full_fedavg"],
        "full_scaffold": counts["full_scaffold"],
        "ssf": {"down": counts["ssf_paper_count"]["down"], "up": counts["ssf_paper_count"]["up_minimal"]},
        "fedsub": {"down": counts["fedsub"]["down"], "up": counts["fedsub"]["up"]},
    }
    for method, floats in expected.items():
        options = {"local_steps": SIZES["K"], "participation": FixedParticipation(found["clients_per_round"])}
        trainer = train(STACKS[method](), tmp_path, MatrixRegression(), GoldenData(found), max_rounds=2, **options)
        metrics = trainer.ledger.metrics()
        assert metrics["comm/down_bytes"] == floats["down"] * 8 * SIZES["N"], method
        assert metrics["comm/up_bytes"] == floats["up"] * 8 * SIZES["N"], method
