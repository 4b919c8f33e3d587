"""Limits in which several methods must coincide, and what a round must leave unchanged."""

from pathlib import Path

import pytest
import torch
from contract.methods import METHODS, train_method
from worlds import Bystander, Quadratic, train, train_quadratic

from lfl.callbacks import SSF, FedDC, FedDyn, FederatedCallback, Scaffold
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation
from lfl.subspace import IdentitySubspace, LayerwiseSubspace


@pytest.mark.parametrize("make", [Scaffold, lambda: SSF(IdentitySubspace())])
def test_first_round_is_fedavg(make: type[FederatedCallback], tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, max_rounds=1) for stack in ([], [make()])]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-13)


class MeanControl(Bystander):
    """Checks c == mean c_i over all clients after every round."""

    def __init__(self, slot: str) -> None:
        self.slot = slot

    def on_round_end(self, round) -> None:
        rows = self.run.store.gather(self.slot, torch.arange(self.run.num_clients))
        control = self.run.callbacks[0].control
        assert control.abs().max() > 1e-4
        torch.testing.assert_close(rows.mean(dim=0), control, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "slot"),
    [
        (lambda: Scaffold("I"), "scaffold/control"),
        (lambda: Scaffold("II"), "scaffold/control"),
        (lambda: SSF(LayerwiseSubspace(0.3)), "ssf/control"),
    ],
)
def test_server_control_is_the_mean_of_all_clients(make, slot: str, tmp_path: Path) -> None:
    train([make(), MeanControl(slot)], tmp_path, max_rounds=5)


@pytest.mark.parametrize("participation", [FullParticipation(), UniformParticipation(2)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaffold("I"),
        lambda: Scaffold("II"),
        lambda: SSF(IdentitySubspace()),
        lambda: FedDyn(0.5),
        lambda: FedDC(0.1),
    ],
)
def test_control_variates_reach_the_optimum_of_heterogeneous_quadratics(make, participation, tmp_path: Path) -> None:
    """FedAvg stalls away from it; what sums up correctly makes it a fixed point, also with 2 of 5 clients."""
    rounds = 100 if isinstance(participation, FullParticipation) else 400
    options = {"participation": participation, "engine": "vectorized", "module": Quadratic(lr=0.2)}
    trainer, data = train_quadratic([make()], tmp_path, max_rounds=rounds, **options)
    assert (trainer.server.vector - data.optimum).norm() < 1e-8


def test_fedavg_stalls_on_heterogeneous_quadratics(tmp_path: Path) -> None:
    trainer, data = train_quadratic([], tmp_path, max_rounds=100, engine="vectorized")
    assert 0.01 < (trainer.server.vector - data.optimum).norm() < 1


# By its definition all clients' duals change in every round.
@pytest.mark.parametrize("method", [method for method in METHODS if method != "fedsub-stale"])
def test_absent_clients_are_not_touched(method: str, tmp_path: Path) -> None:
    early, late = [0, 1, 3, 5, 6], [1, 3, 5, 6, 7]  # of eight clients; Krum needs five of them
    schedule = FixedParticipation([early, early, late, late])
    trainer = train_method(method, tmp_path, participation=schedule)
    present = {0, 1, 3, 5, 6, 7}
    if (system := trainer.run.system) is not None:  # which may lose some of those that are scheduled
        waited = ((number, schedule.select(number, 8, 0)) for number in range(1, trainer.current_round + 1))
        present = {i for number, ids in waited for i in system.answers(ids, number, 0).on_time.tolist()}
        assert method == "scaffold+deadline" or len(present) == 6
    for name in trainer.store.slots:
        held = trainer.store.has_rows(name, torch.arange(8)).nonzero().flatten()
        assert set(held.tolist()) == present
        assert trainer.store.rows_in_use(name) == len(present)
