"""FedMRUR: what is left when parts are switched off, steps by hand, the aggregate, and the term in the loss."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Bystander, QuadraticData, cnn, mlp, ragged_data, train, train_quadratic
from lightning.pytorch import LightningModule
from quadratics import Spy, quadratic_data
from test_buffers import ONE_ROUND, BatchNormNet, even_data
from torch import Tensor, nn

from lfl.aggregation import MeanAggregator, NormalizedReaggregation
from lfl.callbacks import ClientMomentum, FederatedCallback, HyperbolicRegularization, Scaffold, SharpnessAware
from lfl.data import IIDPartitioner
from lfl.models import CifarResNet, Classifier

ENGINES = ["sequential", "vectorized"]


def fedmrur(gamma: float = 0.5, rho: float = 0.1, alpha: float = 0.3, **options: Any) -> list[FederatedCallback]:
    """Strong enough to be seen in a few rounds of a small model."""
    term = HyperbolicRegularization("backbone", gamma=gamma, **{"sigma": 10.0, **options})
    return [term, SharpnessAware(rho), ClientMomentum(alpha)]


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


@pytest.mark.parametrize("engine", ENGINES)
def test_measuring_changes_nothing(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "cohort_size": 3, "precision": "32-true"}
    runs = [train(fedmrur(measure_every_n_rounds=m), tmp_path, mlp(dropout=0.3), **options) for m in (1, 0)]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")


def test_recorded_steps_have_the_same_bits(tmp_path: Path) -> None:
    options = {"engine": "vectorized", "precision": "32-true"}
    data = [ragged_data(partitioner=IIDPartitioner()) for _ in range(2)]
    runs = [train(fedmrur(), tmp_path, cnn(), d, trace_steps=t, **options) for d, t in zip(data, (0, 1), strict=True)]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    name = "hyperbolic/gradient_ratio"
    assert runs[0].summary.last(name) == runs[1].summary.last(name)


# -- a step by hand ------------------------------------------------------------------------------------------------


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


# -- the aggregate ---------------------------------------------------------------------------------------------------


def aggregate(rows: Tensor, weighting: Any = "uniform", sizes: Tensor | None = None) -> Tensor:
    aggregator = NormalizedReaggregation(weighting)
    aggregator.start()
    weights = aggregator.weights(torch.ones(len(rows)).long() if sizes is None else sizes)
    for row, weight in zip(rows.split(2), weights.split(2), strict=True):
        aggregator.add(row, weight)
    return aggregator.result()


def test_orthogonal_updates_of_one_length_are_stretched_by_the_root_of_their_number() -> None:
    torch.testing.assert_close(aggregate(torch.eye(9)), math.sqrt(9) * torch.eye(9).double().mean(dim=0))


def test_equal_updates_and_a_single_one_are_the_mean_and_opposite_ones_are_zero() -> None:
    row = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(aggregate(row), row[0], rtol=1e-15, atol=0)
    torch.testing.assert_close(aggregate(row.repeat(5, 1)), row[0], rtol=1e-15, atol=0)
    assert torch.equal(aggregate(torch.cat([row, -row])), torch.zeros(7).double())
    assert torch.equal(aggregate(torch.zeros(3, 7)), torch.zeros(7).double())


def test_direction_norm_scale_and_order() -> None:
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    found = aggregate(rows)
    torch.testing.assert_close(found.norm(), rows.norm(dim=1).mean())
    torch.testing.assert_close(found / found.norm(), rows.mean(dim=0) / rows.mean(dim=0).norm())
    torch.testing.assert_close(aggregate(rows.flip(0)), found, rtol=0, atol=1e-15)
    torch.testing.assert_close(aggregate(3.5 * rows), 3.5 * found)
    sizes = torch.tensor([1, 2, 3, 4, 5, 6])
    weights = sizes / sizes.sum().double()
    by_size, mean = aggregate(rows, "examples", sizes), weights @ rows
    torch.testing.assert_close(by_size, mean / mean.norm() * (weights @ rows.norm(dim=1)))


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


# -- the term --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_term_has_no_gradient_at_x(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "max_rounds": 1, "local_steps": 1}
    runs = [train([HyperbolicRegularization("backbone", g)], tmp_path, cnn(), **options) for g in (0.0, 5.0)]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-13)
    losses = [run.summary.last("train/loss")[0] for run in runs]
    assert losses[1] - losses[0] == pytest.approx(5.0, abs=1e-12)  # R = 1
    assert runs[1].summary.last("hyperbolic/distance")[0] == pytest.approx(0.0, abs=1e-24)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_keeps_features_near(reduction: str, tmp_path: Path) -> None:
    distances = []
    for gamma in (1e-9, 0.05, 0.2):
        term = HyperbolicRegularization("backbone", gamma, sigma=20.0, reduction=reduction)
        trainer = train([term], tmp_path, cnn(), local_epochs=3, max_rounds=2)
        distances.append(trainer.summary.last("hyperbolic/distance")[0])
    assert distances[0] > 1.15 * distances[1] > 1.15 * 1.15 * distances[2] > 0


class Watch(Bystander):
    """Counts the passes of the frozen model, and how far what they give is from its forward on the same batch."""

    global_features = ("backbone",)

    def __init__(self) -> None:
        self.passes = self.steps = self.cohorts = self.compared = 0
        self.furthest = 0.0

    def on_cohort_start(self, cohort) -> None:
        model = self.run.model
        self.steps += int(cohort.num_steps.sum())
        self.cohorts += 1
        if "global_features" not in vars(model):
            plain = model.global_features

            def counted(*arguments):
                self.passes += 1
                return plain(*arguments)

            model.global_features = counted

    def client_loss(self, client, loss):
        self.compared += 1
        found, expected = client.global_features["backbone"], client.call_global(client.batch[0])
        self.furthest = max(self.furthest, float((found - expected).abs().max()))
        assert not found.requires_grad
        return loss


def test_the_frozen_model_sees_a_clients_batches_in_one_pass(tmp_path: Path) -> None:
    """Two passes of SAM and two times two measuring ones use it; and a term that runs the model disturbs none."""
    watch = Watch()
    runs = [train([*stack, *fedmrur()], tmp_path, cnn()) for stack in ([watch], [])]
    assert watch.passes == watch.cohorts + 1 < watch.steps  # the first batch is tried alone, too
    assert watch.compared > 2 * watch.steps
    assert watch.furthest < 1e-13
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_with_statistics_that_training_changes_it_sees_each_batch_at_its_step(tmp_path: Path) -> None:
    watch = Watch()
    train([watch, *fedmrur()], tmp_path, Classifier(CifarResNet(8, in_channels=1, num_classes=4)), max_rounds=1)
    assert watch.passes == watch.steps > 10


def test_a_network_that_compares_examples_sees_each_batch_alone(tmp_path: Path) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            z = self.linear(x.flatten(1))
            return z - z.mean(dim=0)

    watch = Watch()
    train([watch, *fedmrur()], tmp_path, Classifier(Centred()), max_rounds=1)
    assert watch.passes == watch.steps + 1 + 1 > 10  # the joint pass, and the one it was compared with
    assert watch.furthest == 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_measured_step_is_the_last_one(engine: str, tmp_path: Path) -> None:
    """Two passes more in one step of every cohort; the ratio is zero where clients have one step, from x."""
    spy = Spy()
    options = {"engine": engine, "cohort_size": 64, "max_rounds": 1, "local_steps": 3}
    trainer = train([spy, *fedmrur(rho=0.0)], tmp_path, cnn(), **options)
    passes = [float(points.sum()) for points in spy.points[:5]]
    assert len(set(passes)) == 3
    assert passes[2:] == [passes[2]] * 3
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] > 1e-3
    trainer = train(fedmrur(rho=0.0), tmp_path, cnn(), engine=engine, max_rounds=1, local_steps=1)
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] == pytest.approx(0.0, abs=1e-12)


def test_the_measured_clients_do_not_depend_on_cohorts(tmp_path: Path) -> None:
    """The half of a round's clients with more steps is measured, in its last common step."""

    class Norms(Bystander):
        def __init__(self) -> None:
            self.steps, self.found = dict[int, int](), dict[int, list[float]]()

        def on_cohort_end(self, cohort) -> None:
            rows = cohort.rows.get("hyperbolic/norms", torch.full((len(cohort), 2), math.nan))
            self.steps |= dict(zip(cohort.ids.tolist(), cohort.num_steps.tolist(), strict=True))
            self.found |= dict(zip(cohort.ids.tolist(), rows.tolist(), strict=True))

    runs = []
    for engine, size in (("sequential", None), ("vectorized", 2), ("vectorized", 64)):
        norms = Norms()
        trainer = train([*fedmrur(), norms], tmp_path, cnn(), max_rounds=1, engine=engine, cohort_size=size)
        rows = torch.tensor([norms.found[client] for client in sorted(norms.found)])
        steps = torch.tensor([norms.steps[client] for client in sorted(norms.steps)])
        assert torch.equal(rows.isnan().all(dim=1), steps < steps.median())
        term, loss = rows.nansum(dim=0)
        assert trainer.summary.last("hyperbolic/gradient_ratio")[0] == pytest.approx(float(term / loss))
        runs.append(rows)
    assert 0 < runs[0].isnan().sum() < runs[0].numel()
    for rows in runs[1:]:
        torch.testing.assert_close(rows, runs[0], rtol=1e-9, atol=0, equal_nan=True)


def test_what_is_far_is_clamped_counted_and_warned_of_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"of the examples of round 1 are further than 80 sigma") as caught:
        trainer = train([HyperbolicRegularization("backbone", 1e-40, sigma=1e-8)], tmp_path, cnn(), local_epochs=2)
    assert len(caught) == 1
    assert 0 < trainer.summary.last("hyperbolic/clamped")[0] <= 1
    assert trainer.server.vector.isfinite().all()


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


def test_batch_norm_sees_a_batch_once_although_it_is_measured(tmp_path: Path) -> None:
    states = []
    for stack in ([], [HyperbolicRegularization("backbone", 0.5)]):
        torch.manual_seed(0)
        trainer = train(stack, tmp_path, Classifier(BatchNormNet(), lr=0.1), even_data(batch_size=5), **ONE_ROUND)
        states.append(trainer.server_state_dict())
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(states[0][f"backbone.norm.{name}"], states[1][f"backbone.norm.{name}"]), name


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


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no layer 'penultimate' .* it has: backbone, "):
        train([HyperbolicRegularization("penultimate")], tmp_path)
    with pytest.raises(ValueError, match="`reduction=max`"):
        HyperbolicRegularization("backbone", reduction="max")


def test_weighting_of_the_aggregate_is_uniform_unless_said(tmp_path: Path) -> None:
    assert NormalizedReaggregation().weighting == "uniform"
    assert MeanAggregator().weighting == "examples"
