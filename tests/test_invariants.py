"""Limits in which methods must coincide, and what a round must leave unchanged."""

from pathlib import Path

import pytest
import torch
from conftest import Bystander, Quadratic, QuadraticData, mlp, ragged_data, train, train_quadratic
from methods import METHODS, train_method

from lfl.aggregation import MeanAggregator
from lfl.callbacks import SSF, FederatedCallback, FedSub, Proximal, Scaffold
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation
from lfl.subspace import CoordinateSubspace, IdentitySubspace, LayerwiseSubspace

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
def test_fedprox_without_strength_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, mlp(dropout=0.3), engine=engine) for stack in ([], [Proximal(mu=0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_fedprox_first_step_is_fedavgs_and_clients_stay_nearer(tmp_path: Path) -> None:
    first = [train_quadratic(s, tmp_path, max_rounds=1, local_steps=1)[0] for s in ([], [Proximal(mu=0.5)])]
    assert torch.equal(first[0].server.vector, first[1].server.vector)
    moved = [
        train_quadratic([Proximal(mu)], tmp_path, max_rounds=1)[0].server.vector.norm() for mu in (0.0, 0.1, 1.0, 5.0)
    ]
    assert moved == sorted(moved, reverse=True)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_client_is_sgd(option: str, tmp_path: Path) -> None:
    """N=1: c = c_i, so every correction is zero; option I's c_i+ is the same number for both."""
    one = {"participation": FullParticipation(), "max_rounds": 4}
    data = [ragged_data(num_clients=1) for _ in range(2)]
    plain = train([], tmp_path, mlp(), data[0], **one)
    scaffold = train([Scaffold(option)], tmp_path, mlp(), data[1], **one)
    torch.testing.assert_close(scaffold.server.vector, plain.server.vector, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [Scaffold, lambda: SSF(IdentitySubspace())])
def test_first_round_is_fedavg(make: type[FederatedCallback], tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, max_rounds=1) for stack in ([], [make()])]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_ssf_with_the_identity_is_scaffold(engine: str, tmp_path: Path) -> None:
    scaffold, ssf = (train([c], tmp_path, max_rounds=5, engine=engine) for c in (Scaffold(), SSF(IdentitySubspace())))
    torch.testing.assert_close(ssf.server.vector, scaffold.server.vector, rtol=0, atol=1e-11)
    torch.testing.assert_close(ssf.stack[0].control, scaffold.stack[0].control, rtol=0, atol=1e-10)


def test_fedsub_with_the_identity_and_full_participation_is_scaffold(tmp_path: Path) -> None:
    options = {"participation": FullParticipation(), "max_rounds": 5, "local_steps": 4}
    scaffold, fedsub = (train([c], tmp_path, **options) for c in (Scaffold(), FedSub(IdentitySubspace())))
    torch.testing.assert_close(fedsub.server.vector, scaffold.server.vector, rtol=0, atol=1e-11)
    duals = fedsub.store.gather("fedsub/dual", torch.arange(8))
    assert duals.sum(dim=0).abs().max() < 1e-13
    assert duals.abs().max() > 1e-3


def test_ssf_with_one_full_gradient_is_projected_gradient_descent(tmp_path: Path) -> None:
    """K=1, all clients, whole batches: ``x+ = x - eta P^T P grad F(x)``."""
    trainer, data = train_quadratic([SSF(CoordinateSubspace(5))], tmp_path, max_rounds=3, local_steps=1)
    x = torch.zeros(12, dtype=torch.float64)
    for number in range(1, 4):
        basis = trainer.stack[0]._bases.at(number)
        gradient = (data.curvature * (x - data.centre)).mean(dim=0)
        x = x - 0.1 * basis.lift(basis.project(gradient))
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


def test_scaffold_control_is_the_mean_local_gradient(tmp_path: Path) -> None:
    """Plain SGD, option II: c_i+ is the mean of the K gradients, here of a quadratic followed by hand."""
    trainer, data = train_quadratic([Scaffold()], tmp_path, max_rounds=1)
    rows = trainer.store.gather("scaffold/control", torch.arange(5))
    y, total = torch.zeros(5, 12, dtype=torch.float64), torch.zeros(5, 12, dtype=torch.float64)
    for _ in range(6):
        gradient = data.curvature * (y - data.centre)
        total, y = total + gradient, y - 0.1 * gradient
    torch.testing.assert_close(rows, total / 6, rtol=0, atol=1e-13)


def test_scaffold_with_momentum_takes_the_weighted_mean_gradient(tmp_path: Path) -> None:
    """Under momentum rho movement is ``-eta sum_k a_k g_k`` with a_k = (1 - rho^(K-k)) / (1 - rho), k = 0..K-1."""
    trainer, data = train_quadratic([Scaffold()], tmp_path, max_rounds=1, module=Quadratic(momentum=0.9))
    y, velocity = torch.zeros(5, 12, dtype=torch.float64), torch.zeros(5, 12, dtype=torch.float64)
    weights = [(1 - 0.9 ** (6 - k)) / 0.1 for k in range(6)]
    mean = torch.zeros_like(y)
    for weight in weights:
        gradient = data.curvature * (y - data.centre)
        mean += weight / sum(weights) * gradient
        velocity = 0.9 * velocity + gradient
        y = y - 0.1 * velocity
    torch.testing.assert_close(trainer.store.gather("scaffold/control", torch.arange(5)), mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("participation", [FullParticipation(), UniformParticipation(2)])
@pytest.mark.parametrize("make", [lambda: Scaffold("I"), lambda: Scaffold("II"), lambda: SSF(IdentitySubspace())])
def test_control_variates_reach_the_optimum_of_heterogeneous_quadratics(make, participation, tmp_path: Path) -> None:
    """FedAvg stalls away from it; controls that sum up correctly make it a fixed point, also with 2 of 5 clients."""
    rounds = 100 if isinstance(participation, FullParticipation) else 400
    options = {"participation": participation, "engine": "vectorized", "module": Quadratic(lr=0.2)}
    trainer, data = train_quadratic([make()], tmp_path, max_rounds=rounds, **options)
    assert (trainer.server.vector - data.optimum).norm() < 1e-8


def test_fedavg_stalls_on_heterogeneous_quadratics(tmp_path: Path) -> None:
    trainer, data = train_quadratic([], tmp_path, max_rounds=100, engine="vectorized")
    assert 0.01 < (trainer.server.vector - data.optimum).norm() < 1


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


def test_one_full_batch_step_is_a_gradient_step_on_the_pooled_loss(tmp_path: Path) -> None:
    """K=1, whole batches, all clients, weights by examples."""
    data = ragged_data(batch_size=1000)
    options = {"participation": FullParticipation(), "aggregator": MeanAggregator("examples"), "max_rounds": 1}
    trainer = train([], tmp_path, mlp(), data, local_steps=1, **options)
    module = mlp().double()
    inputs, targets = data.gather(torch.arange(120)[None])
    loss = torch.nn.functional.cross_entropy(module(inputs[0]), targets[0])
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([(p - 0.1 * g).flatten() for p, g in zip(module.parameters(), gradients, strict=True)])
    torch.testing.assert_close(trainer.server.vector, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_absent_clients_are_not_touched(method: str, tmp_path: Path) -> None:
    schedule = FixedParticipation([[0, 3], [0, 3], [3, 5], [3, 5]])
    trainer = train_method(method, tmp_path, participation=schedule)
    for name in trainer.store.slots:
        assert trainer.store.rows_in_use(name) == 3


def test_server_learning_rate_and_momentum(tmp_path: Path) -> None:
    """SGD(lr) on the negated aggregate: x + lr * aggregate; momentum is FedAvgM, ``m = beta m + aggregate``."""
    sgd = torch.optim.SGD
    half = train_quadratic([], tmp_path, max_rounds=1, server_optimizer=lambda p: sgd(p, lr=0.5))[0]
    whole = train_quadratic([], tmp_path, max_rounds=1)[0]
    torch.testing.assert_close(half.server.vector, whole.server.vector / 2, rtol=0, atol=1e-15)
    data = QuadraticData()
    shrink = (1 - 0.1 * data.curvature) ** 6
    x, m = torch.zeros(12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for _ in range(4):
        m = 0.9 * m + ((1 - shrink) * (data.centre - x)).mean(0)
        x = x + m
    momentum = train_quadratic([], tmp_path, max_rounds=4, server_optimizer=lambda p: sgd(p, lr=1.0, momentum=0.9))[0]
    torch.testing.assert_close(momentum.server.vector, x, rtol=0, atol=1e-12)


def test_learning_rate_schedule_over_rounds(tmp_path: Path) -> None:
    """Round 1 uses the undecayed rate; round t the rate times gamma^(t-1); everything divides by the round's own."""

    def module() -> Quadratic:
        model = Quadratic()

        def configure() -> object:
            built = torch.optim.SGD(model.parameters(), lr=0.1)
            return [built], [torch.optim.lr_scheduler.ExponentialLR(built, 0.5)]

        model.configure_optimizers = configure  # type: ignore[method-assign]
        return model

    data = QuadraticData()
    x = torch.zeros(12, dtype=torch.float64)
    for t in range(3):
        x = x + ((1 - (1 - 0.1 * 0.5**t * data.curvature) ** 6) * (data.centre - x)).mean(0)
    trainer, _ = train_quadratic([], tmp_path, max_rounds=3, module=module())
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-13)
    decayed, data = train_quadratic([Scaffold()], tmp_path, max_rounds=2, module=module())
    own = decayed.store.gather("scaffold/control", torch.arange(5))
    assert (own - data.curvature * (decayed.server.vector - data.centre)).abs().max() < 0.5
