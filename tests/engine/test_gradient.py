"""The innermost gradient functions of a cohort."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import ragged_data, train

from lfl.client.schedule import BatchPlan
from lfl.client.step import LocalStep, StepBatch, StepInput, StepResult
from lfl.engine.gradient import in_coordinates, loss_gradient
from lfl.round import Cohort, Round
from lfl.subspace.coordinate import CoordinateBasis


class Failing(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[1]) == 3:
            raise RuntimeError("three is unlucky")
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_error_in_a_step_says_where(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unlucky") as caught:
        train([], tmp_path, Failing(), ragged_data(), max_rounds=20)
    assert re.fullmatch(r"in round \d+, local step \d+ of client\(s\) \[\d\]", caught.value.__notes__[0])


def three_clients() -> tuple[Cohort, LocalStep, list[Any]]:
    """The first and the last share a batch, the second has one of its own; what is logged is kept."""
    ids = torch.tensor([4, 7, 9])
    round = Round(2, ids, torch.zeros(1), ids, ids)
    cohort = Cohort(round, ids, ids, ids, torch.zeros(3, 1), torch.zeros(3, 0))
    parts = []
    for rows in (torch.tensor([0, 2]), slice(1, 2)):
        plan = BatchPlan(5, 3, rows, torch.zeros(1, 1, dtype=torch.int64), None, 1)
        factors = torch.tensor([[10.0], [20.0], [30.0]])[rows]
        parts.append(StepBatch(plan, factors, torch.zeros(len(factors), dtype=torch.int64), {}))
    logged: list[Any] = []
    step = LocalStep(5, 0, 3, torch.zeros(1), parts, {}, log=lambda plan, losses, logs: logged.append(losses.tolist()))
    return cohort, step, logged


def scaled(phase: int, params: Tensor, input: StepInput) -> StepResult:
    return StepResult(params * input.batch, params.sum(1), {})


def test_gradients_of_several_batches_are_put_together_and_logged_once() -> None:
    cohort, step, logged = three_clients()
    gradient, params = loss_gradient(cohort, scaled), torch.tensor([[1.0], [2.0], [3.0]])
    assert gradient(params, step).tolist() == [[10.0], [40.0], [90.0]]
    assert gradient(2 * params, step).tolist() == [[20.0], [80.0], [180.0]]
    assert logged == [[1.0, 3.0], [2.0]]


def test_an_error_names_round_step_and_clients() -> None:
    def broken(phase: int, params: Tensor, input: StepInput) -> StepResult:
        raise ZeroDivisionError

    cohort, step, _ = three_clients()
    with pytest.raises(ZeroDivisionError) as caught:
        loss_gradient(cohort, broken)(torch.zeros(3, 1), step)
    assert caught.value.__notes__ == ["in round 2, local step 5 of client(s) [4, 9]"]


def test_in_coordinates_weight_decay_is_of_the_parameters() -> None:
    """x = (1, 2, 3, 4), P takes the second and the last, z = (1, 1), g(y) = 10 y, decay 0.5: P (10.5 y)."""
    ids = torch.tensor([0])
    round = Round(1, ids, torch.tensor([1.0, 2.0, 3.0, 4.0]), ids, ids)
    round.basis = CoordinateBasis(torch.tensor([1, 3]), dim=4)
    cohort = Cohort(round, ids, ids, ids, torch.zeros(1, 2), torch.zeros(1, 0))
    cohort.optimizer = SimpleNamespace(weight_decay=lambda: torch.tensor(0.5))  # type: ignore[assignment]
    gradient = in_coordinates(cohort, lambda params, step: 10 * params)
    assert gradient(torch.ones(1, 2), None).tolist() == [[10.5 * 3, 10.5 * 5]]  # type: ignore[arg-type]
    cohort.optimizer = SimpleNamespace(weight_decay=lambda: None)  # type: ignore[assignment]
    assert in_coordinates(cohort, lambda p, step: p)(torch.ones(1, 2), None).tolist() == [[3.0, 5.0]]  # type: ignore[arg-type]
