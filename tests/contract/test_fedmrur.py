"""FedMRUR, a stack of three callbacks and an aggregator: what is left without a part, and rounds by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import fedmrur
from lightning.pytorch import LightningModule
from quadratics import quadratic_data
from torch import Tensor, nn
from worlds import (
    Bystander,
    QuadraticData,
    cnn,
    mlp,
    ragged_data,
    train,
    train_quadratic,
)

from lfl.aggregation import NormalizedReaggregation
from lfl.callbacks import ClientMomentum, FederatedCallback, HyperbolicRegularization, Scaffold, SharpnessAware
from lfl.data import IIDPartitioner

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("switched_off", "left"),
    [
        ({"gamma": 0.0}, lambda: [SharpnessAware(0.1), ClientMomentum(0.3)]),
        ({"gamma": 0.0, "rho": 0.0}, lambda: [ClientMomentum(0.3)]),
        ({"gamma": 0.0, "alpha": 1.0}, lambda: [SharpnessAware(0.1)]),
        ({"gamma": 0.0, "rho": 0.0, "alpha": 1.0}, list),
    ],
)
def test_without_a_part_it_is_what_is_left_to_the_bit(
    switched_off: Any, left: Any, engine: str, tmp_path: Path
) -> None:
    options = {"engine": engine, "cohort_size": 3, "precision": "32-true"}
    runs = [train(stack, tmp_path, mlp(dropout=0.3), **options) for stack in (fedmrur(**switched_off), left())]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].ledger.metrics() == runs[1].ledger.metrics()
    assert runs[0].run.model.global_feature_names == ()


def test_recorded_steps_have_the_same_bits(tmp_path: Path) -> None:
    options = {"engine": "vectorized", "precision": "32-true"}
    data = [ragged_data(partitioner=IIDPartitioner()) for _ in range(2)]
    runs = [train(fedmrur(), tmp_path, cnn(), d, trace_steps=t, **options) for d, t in zip(data, (0, 1), strict=True)]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    name = "hyperbolic/gradient_ratio"
    assert runs[0].summary.last(name) == runs[1].summary.last(name)


class Vector(LightningModule):
    """``1/2 |w - b_i|^2`` with w the output of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        curvature, centre = batch
        return 0.5 * (curvature * (self.layer(curvature[:, :1]) - centre) ** 2).sum(dim=-1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def orthogonal_clients() -> QuadraticData:
    return quadratic_data([[1.0, 1.0], [1.0, 1.0]], [[-4.65, 0.0], [0.0, -6.65]])


def test_a_round_of_two_clients_by_hand(tmp_path: Path) -> None:
    """x = 0, K = 1, eta = 0.1, rho = 0.75, alpha = 0.5, beta = 1, sigma = 0.5 / ln 2, gamma = sigma / 4.

    At x the term has no gradient: both climb along their loss, to (.75, 0) and (0, .75). There |w| = 0.75,
    d = 2 (1.25 - 1) = 0.5, grad d = 2 w / 1.25, of length 1.2; gamma grad R = gamma / sigma exp(ln 2) 1.2 = 0.6.
    g~ = 4.65 + 0.75 + 0.6 = 6 along the first axis, and 6.65 + 0.75 + 0.6 = 8 along the second.
    m = 0, so v = 3 and 4: delta = (-.3, 0) and (0, -.4). Mean of norms 0.35, direction (-.6, -.8):
    x+ = (-.21, -.28), m = -x+ / (K eta) = (2.1, 2.8).
    """
    sigma = 0.5 / math.log(2)
    term = HyperbolicRegularization("layer", gamma=sigma / 4, sigma=sigma)
    stack = [term, SharpnessAware(0.75), ClientMomentum(0.5, momentum_from="aggregate")]
    options = {"module": Vector(), "data": orthogonal_clients(), "local_steps": 1, "max_rounds": 1}
    trainer, _ = train_quadratic(stack, tmp_path, aggregator=NormalizedReaggregation(), **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.21, -0.28], abs=1e-14)
    assert trainer.stack[2].momentum.tolist() == pytest.approx([2.1, 2.8], abs=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_of_two_clients_in_closed_form(engine: str, tmp_path: Path) -> None:
    """The same with three steps and rounds, every gradient by its formula."""
    gamma, sigma, beta, rho, alpha, eta, steps = 3.0, 2.0, 0.5, 0.4, 0.3, 0.1, 3
    stack = [
        HyperbolicRegularization("layer", gamma, sigma, beta, measure_every_n_rounds=1),
        SharpnessAware(rho),
        ClientMomentum(alpha, "aggregate"),
    ]
    options = {"module": Vector(), "data": orthogonal_clients(), "local_steps": steps, "max_rounds": 3}
    aggregator = NormalizedReaggregation()
    trainer, data = train_quadratic(stack, tmp_path, engine=engine, aggregator=aggregator, **options)

    def gradients(w: Tensor) -> tuple[Tensor, Tensor]:
        dz, (a, b) = w - x, ((beta + v.square().sum(-1, keepdim=True)).sqrt() for v in (w, x.expand(2, 2)))
        d = dz.square().sum(-1, keepdim=True) - (a - b) ** 2
        return w - data.centre, gamma / sigma * (d / sigma).exp() * 2 * (b / a * w - x)

    x, m = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        y = x.repeat(2, 1)
        for _ in range(steps):
            loss, term = gradients(y)
            g = loss + term
            v = alpha * sum(gradients(y + rho * g / g.norm(dim=1, keepdim=True))) + (1 - alpha) * m
            y = y - eta * v
        delta = y - x
        moved = delta.sum(0) / delta.sum(0).norm() * delta.norm(dim=1).mean()
        x, m = x + moved, -moved / (steps * eta)
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-13)
    torch.testing.assert_close(trainer.stack[2].momentum, m, rtol=0, atol=1e-12)
    ratio = term.norm(dim=1).sum() / loss.norm(dim=1).sum()
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] == pytest.approx(float(ratio), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_moves_by_its_rate_times_the_mean_of_norms(engine: str, tmp_path: Path) -> None:
    class Norms(Bystander):
        def on_cohort_end(self, cohort) -> None:
            cohort.round.accumulate("norms", cohort.delta.norm(dim=1).sum())

        def on_server_step(self, round) -> None:
            moved = (self.run.server.vector - round.server).norm()
            torch.testing.assert_close(moved, 0.7 * round.sums["norms"] / round.num_reported, rtol=1e-12, atol=0)

    half = {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.7)}
    options = {"aggregator": NormalizedReaggregation(), "engine": engine, "cohort_size": 2, **half}
    train([*fedmrur(), Norms()], tmp_path, cnn(), **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_in_bf16_mixed_the_distance_is_float32_and_everything_finite(engine: str, tmp_path: Path) -> None:
    """The features are rounded to 8 bits, the distance is not."""

    class Types(FederatedCallback):
        features = ("backbone",)

        def client_loss(self, client, loss):
            # Under vmap torch adds the bias of a linear layer in float32.
            assert engine == "vectorized" or client.features["backbone"].dtype == torch.bfloat16
            return loss

    options = {"precision": "bf16-mixed", "engine": engine, "aggregator": NormalizedReaggregation()}
    trainer = train([Types(), *fedmrur()], tmp_path, mlp(), **options)
    assert trainer.server.vector.dtype == torch.float32
    assert trainer.server.vector.isfinite().all()
    assert math.isfinite(trainer.summary.last("hyperbolic/distance")[0])
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] > 0


def test_rows_of_the_loss_follow_when_a_client_is_dropped(tmp_path: Path) -> None:
    """SCAFFOLD I asks for gradients of the whole loss after a client whose update is not finite is gone."""

    class Rows(FederatedCallback):
        def on_cohort_start(self, cohort) -> None:
            cohort.loss_rows["number"] = cohort.ids.to(cohort.values)

        def on_cohort_end(self, cohort) -> None:
            assert cohort.loss_rows["number"].tolist() == cohort.ids.tolist()

    class Spoil(FederatedCallback):
        def on_step_end(self, cohort) -> None:
            cohort.values[0] = math.nan

    options = {"engine": "vectorized", "on_nonfinite": "skip", "max_rounds": 1}
    trainer = train([Spoil(), *fedmrur(), Rows(), Scaffold("I")], tmp_path, cnn(), **options)
    assert trainer.run.progress.refused == 1
    assert trainer.server.vector.isfinite().all()
