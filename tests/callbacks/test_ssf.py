"""SSF: the identity is SCAFFOLD, and nothing moves outside the basis."""

from pathlib import Path

import pytest
import torch
from worlds import Bystander, Quadratic, QuadraticData, Rounds, train, train_quadratic

from lfl.callbacks import SSF, Scaffold
from lfl.subspace import CoordinateSubspace, IdentitySubspace, LayerwiseSubspace

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
def test_ssf_with_the_identity_is_scaffold(engine: str, tmp_path: Path) -> None:
    scaffold, ssf = (train([c], tmp_path, max_rounds=5, engine=engine) for c in (Scaffold(), SSF(IdentitySubspace())))
    torch.testing.assert_close(ssf.server.vector, scaffold.server.vector, rtol=0, atol=1e-11)
    torch.testing.assert_close(ssf.stack[0].control, scaffold.stack[0].control, rtol=0, atol=1e-10)


def test_ssf_with_one_full_gradient_is_projected_gradient_descent(tmp_path: Path) -> None:
    """K=1, all clients, whole batches: ``x+ = x - eta P^T P grad F(x)``."""
    rounds = Rounds()
    trainer, data = train_quadratic([SSF(CoordinateSubspace(5)), rounds], tmp_path, max_rounds=3, local_steps=1)
    x = torch.zeros(12, dtype=torch.float64)
    for basis in [round.basis for round in rounds.kept]:
        gradient = (data.curvature * (x - data.centre)).mean(dim=0)
        x = x - 0.1 * basis.lift(basis.project(gradient))
    assert len(rounds.kept) == 3
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-14)


class Outside(Bystander):
    """Watches the part of x, c and c_i outside the basis of the round."""

    def on_round_start(self, round) -> None:
        self.before = None

    def coordinates_of(self, round):
        store, ssf = self.run.store, self.run.callbacks[0]
        everyone = torch.arange(self.run.num_clients)
        rows = torch.cat([store.gather("ssf/control", everyone), ssf.control[None]])
        return rows - round.basis.lift(round.basis.project(rows))

    def on_cohort_start(self, cohort) -> None:
        if self.before is None:
            self.before = self.coordinates_of(cohort.round)

    def on_server_step(self, round) -> None:
        moved = self.run.server.vector - round.server
        assert moved.norm() > 1e-3
        assert (moved - round.basis.lift(round.basis.project(moved))).abs().max() < 1e-15
        assert (self.coordinates_of(round) - self.before).abs().max() < 1e-13


@pytest.mark.parametrize("subspace", [LayerwiseSubspace(0.3), CoordinateSubspace(0.3)])
def test_ssf_leaves_what_is_outside_its_basis(subspace, tmp_path: Path) -> None:
    train([SSF(subspace), Outside()], tmp_path, max_rounds=4)


def test_weight_decay_belongs_to_the_objective_of_a_subspace_method(tmp_path: Path) -> None:
    """SSF decays the parameters, not the coordinates: with R = D it is SCAFFOLD with weight decay."""
    runs = [
        train_quadratic([c], tmp_path, max_rounds=20, module=Quadratic(weight_decay=0.3))[0]
        for c in (Scaffold(), SSF(IdentitySubspace()), Scaffold("I"))
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)
    data = QuadraticData()
    optimum = (data.curvature * data.centre).mean(0) / (data.curvature.mean(0) + 0.3)
    for run in runs:
        assert (run.server.vector - optimum).norm() < 0.1


def test_ssf_with_momentum_sends_the_mean_projected_gradient(tmp_path: Path) -> None:
    """Not recoverable from z: it is accumulated, and costs R floats more."""
    trainer, data = train_quadratic([SSF(IdentitySubspace())], tmp_path, max_rounds=1, module=Quadratic(momentum=0.9))
    y, velocity, total = (torch.zeros(5, 12, dtype=torch.float64) for _ in range(3))
    for _ in range(6):
        gradient = data.curvature * (y - data.centre)
        total, velocity = total + gradient, 0.9 * velocity + gradient
        y = y - 0.1 * velocity
    torch.testing.assert_close(trainer.store.gather("ssf/control", torch.arange(5)), total / 6, rtol=0, atol=1e-12)
    assert trainer.ledger.metrics()["comm/up_bytes"] == 5 * 2 * 12 * 8
