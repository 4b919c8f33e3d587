"""Losses and logged values of a cohort's steps, summed over examples."""

import numpy as np
import torch
from torch import Tensor

from lfl.client.schedule import BatchPlan
from lfl.engine.logs import StepLogs
from lfl.round import Cohort


def cohort_of(clients: int) -> Cohort:
    counts = torch.ones(clients, dtype=torch.int64)
    return Cohort(None, counts, counts, counts, torch.zeros(clients, 1), torch.zeros(clients, 0))  # type: ignore[arg-type]


def plan(rows: slice | Tensor, sizes: int | np.ndarray) -> BatchPlan:
    return BatchPlan(0, 2, rows, torch.zeros(2, 1, dtype=torch.int64), None, sizes)


def test_two_clients_by_hand() -> None:
    """Batches of 3 and 3 with losses 1 and 2; of 1 of the first with 5; padded ones of 2 and 0 with 4 and 9."""
    cohort = cohort_of(2)
    logs = StepLogs(cohort)
    logs.add(plan(slice(0, 2), 3), torch.tensor([1.0, 2.0]), {"acc": torch.tensor([0.5, 1.0])})
    logs.add(plan(torch.tensor([0]), 1), torch.tensor([5.0]), {})
    logs.add(plan(slice(0, 2), np.array([2.0, 0.0])), torch.tensor([4.0, 9.0]), {})
    logs.finish()
    assert cohort.losses.total.tolist() == [3 + 5 + 8, 6]
    assert cohort.losses.count.tolist() == [6.0, 3.0]
    assert cohort.metrics["acc"].sum().tolist() == [1.5 + 3.0, 6.0]


def test_one_client_by_hand_over_more_steps_than_are_kept() -> None:
    cohort = cohort_of(1)
    logs = StepLogs(cohort)
    for number in range(600):
        logs.add(plan(slice(0, 1), 2), torch.tensor([float(number)]), {"one": torch.tensor(1.0)})
    logs.finish()
    assert cohort.losses.sum().tolist() == [2 * 599 * 300, 1200]
    assert cohort.metrics["one"].sum().tolist() == [1200, 1200]


def test_a_modules_own_train_loss_is_no_loss_of_ours() -> None:
    cohort = cohort_of(1)
    logs = StepLogs(cohort)
    logs.add(plan(slice(0, 1), 1), torch.tensor([2.0]), {"train/loss": torch.tensor([7.0])})
    logs.finish()
    assert (cohort.losses.sum()[0], cohort.metrics["train/loss"].sum()[0]) == (2.0, 7.0)


def test_without_steps_there_is_no_loss() -> None:
    cohort = cohort_of(2)
    StepLogs(cohort).finish()
    assert (cohort.losses, cohort.metrics) == (None, {})
