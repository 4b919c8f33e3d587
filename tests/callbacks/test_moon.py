"""MOON: its contrast and what that does to features, what it leaves alone, and steps followed by hand."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from quadratics import quadratic_data
from torch import Tensor, nn
from worlds import batch_norm, cnn, equal_data, even_data, mlp, train, train_quadratic

from lfl.callbacks import MOON, FederatedCallback, Scaffold
from lfl.callbacks.moon import model_contrast, unit
from lfl.participation import FullParticipation

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


def moon(mu: float = 1.0) -> MOON:
    return MOON("backbone.layers", mu)


@ENGINES
def test_without_weight_it_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    runs = [train(stack, tmp_path, cnn(dropout=0.3), engine=engine) for stack in ([], [moon(0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert not runs[1].store.is_used


@ENGINES
def test_the_first_participation_has_no_gradient_at_all(engine: str, tmp_path: Path) -> None:
    """Not even rounding: the round is FedAvg's to the bit, with a loss that is log 2 higher."""
    options = {"engine": engine, "max_rounds": 1, "local_epochs": 2}
    # Equal clients: FedAvg pads ragged ones, which rounds otherwise.
    runs = [train(stack, tmp_path, cnn(), equal_data(), **options) for stack in ([], [moon(7.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[1].summary.last("moon/contrast")[0] == pytest.approx(math.log(2), abs=1e-15)
    losses = [run.summary.last("train/loss")[0] for run in runs]
    assert losses[1] - losses[0] == pytest.approx(7 * math.log(2), abs=1e-12)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_the_contrast_from_best_to_worst(tau: float) -> None:
    one = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    best = math.log(1 + math.exp(-2 / tau))
    assert float(model_contrast(one, 5 * one, -one, tau)) == pytest.approx(best)
    assert float(model_contrast(one, -one, 5 * one, tau)) == pytest.approx(best + 2 / tau)
    assert float(model_contrast(one, -one, 5 * one, tau, torch.tensor(0.0))) == pytest.approx(math.log(2))


def test_the_gradient_in_closed_form() -> None:
    """``sigmoid(d / tau) / tau (I - u u') (p - g) / |z|`` with u, g, p the directions and d = <u, p - g>."""
    draws = torch.Generator().manual_seed(0)
    z, servers, previous = (torch.randn(4, 3, generator=draws, dtype=torch.float64) for _ in range(3))
    z.requires_grad_()
    (found,) = torch.autograd.grad(4 * model_contrast(z, servers, previous, 0.5), z)
    u, g, p = (v.detach() / v.detach().norm(dim=1, keepdim=True) for v in (z, servers, previous))
    d = (u * (p - g)).sum(dim=1, keepdim=True)
    expected = torch.sigmoid(d / 0.5) / 0.5 * (p - g - d * u) / z.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_features_of_length_zero_have_no_direction() -> None:
    z = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1e-30, 0.0]], requires_grad=True)
    torch.testing.assert_close(unit(z), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    (found,) = torch.autograd.grad(model_contrast(z, z.detach().flip(1), z.detach() + 1, 0.5), z)
    assert found[0].tolist() == found[2].tolist() == [0.0, 0.0]
    assert bool(found.isfinite().all())


class Direction(nn.Module):
    """Features of an example: the parameter itself."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.ones(2))

    def forward(self, centres: Tensor) -> Tensor:
        return self.point.expand(len(centres), -1)


class Pulled(LightningModule):
    """``1/2 |y - b_i|^2``, with y for features."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Direction()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (self.features(batch[1]) - batch[1]).square().sum(dim=1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@ENGINES
def test_two_rounds_with_scaffold_by_hand(engine: str, tmp_path: Path) -> None:
    """b = (2, 0) and (0, 2), x = (1, 1), one step of 0.1, mu = 3, tau = 0.5.

    Round 1, no contrast: g_1 = (-1, 1) = -g_2, so y_1 = (1.1, 0.9), x = (1, 1), c_i = g_i, c = 0.
    Round 2: u = g = (1, 1) / sqrt 2, p_1 = (1.1, 0.9) / sqrt 2.02; d = <u, p_1> - 1 = 2 / sqrt 4.04 - 1. The part of
    p_1 across u is 0.1 (1, -1) / sqrt 2.02, so the contrast's gradient is s (1, -1) with
    s = 3 sigmoid(d / 0.5) / 0.5 * 0.1 / sqrt 2.02 / sqrt 2. The loss's own is cancelled by c_1, and y_1 = (1, 1) -
    0.1 s (1, -1), away from the last one; c_1+ = (-1 + s, 1 - s). Client 2 mirrors all that, and x stays.
    """
    stack = [MOON("features", mu=3.0, tau=0.5), Scaffold()]
    data = quadratic_data([[1.0, 1.0]] * 2, [[2.0, 0.0], [0.0, 2.0]])
    trainer, _ = train_quadratic(
        stack, tmp_path, data=data, module=Pulled(), local_steps=1, max_rounds=2, engine=engine
    )
    d = 2 / math.sqrt(4.04) - 1
    s = 3 / (1 + math.exp(-d / 0.5)) / 0.5 * 0.1 / math.sqrt(2.02) / math.sqrt(2)
    everyone = torch.arange(2)
    assert trainer.server.vector.tolist() == pytest.approx([1.0, 1.0], abs=1e-14)
    previous = trainer.store.gather("moon/previous", everyone).flatten().tolist()
    assert previous == pytest.approx([1 - 0.1 * s, 1 + 0.1 * s, 1 + 0.1 * s, 1 - 0.1 * s], abs=1e-14)
    controls = trainer.store.gather("scaffold/control", everyone).flatten().tolist()
    assert controls == pytest.approx([-1 + s, 1 - s, 1 - s, -1 + s], abs=1e-12)
    assert trainer.ledger.totals == {"up": 2 * 2 * 4 * 64, "down": 2 * 2 * 4 * 64}  # SCAFFOLD's alone


def test_clients_turn_away_from_their_last_models(tmp_path: Path) -> None:
    contrasts = [
        train([moon(mu)], tmp_path, cnn(), local_epochs=3, max_rounds=4).summary.last("moon/contrast")[0]
        for mu in (1e-9, 0.3, 1.0)
    ]
    assert contrasts[0] > contrasts[1] + 1e-3 > contrasts[2] + 2e-3


def test_frozen_models_do_not_touch_batch_norms_statistics(tmp_path: Path) -> None:
    """In round 1 the term has no gradient; a pass in training mode would count its batch again."""
    options = {"participation": FullParticipation(), "local_epochs": 2}
    stacks: list[list[FederatedCallback]] = [[], [MOON("backbone.norm", 2.0)]]
    runs = [train(stack, tmp_path, batch_norm(), even_data(5), max_rounds=1, **options) for stack in stacks]
    for name, value in runs[0].server_state_dict().items():
        assert torch.equal(runs[1].server_state_dict()[name], value), name
    trainer = train(stacks[1], tmp_path, batch_norm(), even_data(5), **options)
    assert 0 < trainer.summary.last("moon/contrast")[0] != pytest.approx(math.log(2), abs=1e-6)


@ENGINES
def test_recorded_steps_are_the_same(engine: str, tmp_path: Path) -> None:
    runs = [
        train([moon()], tmp_path, cnn(), equal_data(), engine=engine, trace_steps=trace, local_epochs=2)
        for trace in (False, True)
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)


def test_a_layer_that_is_not_there(tmp_path: Path) -> None:
    reason = "`layer=backbone.feature` of MOON names no submodule of Classifier; near it are backbone.features"
    with pytest.raises(ValueError, match=reason):
        train([MOON("backbone.feature")], tmp_path, mlp())


@pytest.mark.parametrize(("options", "reason"), [({"mu": -1.0}, "mu=-1.0"), ({"tau": 0.0}, "tau=0.0")])
def test_refused_values(options: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MOON("backbone", **options)
