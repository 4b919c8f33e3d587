"""FedSAM and FedASAM: where the second gradient is taken, what it leaves alone, and steps followed by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from quadratics import Linear, Spy, quadratic_data
from torch import Tensor, nn
from torchmetrics import MeanMetric
from worlds import Quadratic, Rounds, cnn, mlp, train, train_quadratic

from lfl.callbacks import SSF, AdaptiveSharpnessAware, ClientMomentum, Scaffold, SharpnessAware
from lfl.callbacks.sam import climb
from lfl.models import Classifier
from lfl.subspace import CoordinateSubspace, IdentitySubspace

ENGINES = ["sequential", "vectorized"]


def test_a_step_by_hand(tmp_path: Path) -> None:
    """A = diag(1, 2), b = (-3, -2), x = 0: g = (3, 4), y~ = 0.5 g / 5 = (.3, .4), g~ = (3.3, 4.8), x+ = -0.1 g~."""
    data = quadratic_data([[1.0, 2.0]], [[-3.0, -2.0]])
    options = {"max_rounds": 1, "local_steps": 1, "module": Quadratic(dim=2), "data": data}
    trainer, _ = train_quadratic([SharpnessAware(0.5)], tmp_path, **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.33, -0.48], abs=1e-14)


@pytest.mark.parametrize("make", [Scaffold, lambda: SSF(IdentitySubspace())])
def test_two_rounds_with_controls_by_hand(make: Any, tmp_path: Path) -> None:
    """One dimension, A = 1, b = (-4, 2), K = 1, rho = 0.2: g~ = y - b + 0.2 sign(y - b).

    Round 1, x = 0, no controls: g~ = 4.2 and -2.2, which are the new controls; x = -0.1 * 1 = -0.1, c = 1.
    Round 2: g~ = 4.1 and -2.3; both corrected gradients are 0.9, x = -0.19; c_i+ = c_i - c + 0.9 = 4.1 and -2.3.
    """
    data = quadratic_data([[1.0], [1.0]], [[-4.0], [2.0]])
    options = {"max_rounds": 2, "local_steps": 1, "module": Quadratic(dim=1), "data": data}
    trainer, _ = train_quadratic([SharpnessAware(0.2), make()], tmp_path, **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.19], abs=1e-14)
    assert trainer.stack[1].control.tolist() == pytest.approx([0.9], abs=1e-13)
    slot = "ssf/control" if isinstance(trainer.stack[1], SSF) else "scaffold/control"
    assert trainer.store.gather(slot, torch.arange(2)).flatten().tolist() == pytest.approx([4.1, -2.3], abs=1e-13)


def test_in_a_subspace_it_climbs_along_the_whole_gradient(tmp_path: Path) -> None:
    """The first test's step with one of its two coordinates: that one moves as it did there."""
    data = quadratic_data([[1.0, 2.0]], [[-3.0, -2.0]])
    options = {"max_rounds": 1, "local_steps": 1, "module": Quadratic(dim=2), "data": data}
    rounds = Rounds()
    trainer, _ = train_quadratic([SharpnessAware(0.5), SSF(CoordinateSubspace(1)), rounds], tmp_path, **options)
    kept = rounds.kept[0].basis.lift(torch.ones(1, dtype=torch.float64))
    moved = torch.tensor([-0.33, -0.48], dtype=torch.float64)
    torch.testing.assert_close(trainer.server.vector, kept * moved, rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_second_gradient_is_rho_away_on_the_same_batch(engine: str, tmp_path: Path) -> None:
    spy = Spy()
    train([spy, SharpnessAware(0.3)], tmp_path, cnn(dropout=0.5), engine=engine, cohort_size=3, max_rounds=1)
    assert len(spy.points) % 2 == 0
    for before, top, gradient in zip(spy.points[::2], spy.points[1::2], spy.gradients[::2], strict=True):
        torch.testing.assert_close((top - before).norm(dim=1), torch.full((len(top),), 0.3).double())
        along = gradient / gradient.norm(dim=1, keepdim=True)
        torch.testing.assert_close(top, before + 0.3 * along, rtol=0, atol=1e-14)


def test_the_scale_of_the_loss_does_not_matter_to_where_it_climbs(tmp_path: Path) -> None:
    tops = []
    for scale in (1.0, 1024.0):
        module, spy = mlp(), Spy()
        plain = module.training_step
        module.training_step = lambda batch, index, s=scale, plain=plain: s * plain(batch, index)
        train([spy, SharpnessAware(0.3)], tmp_path, module, max_rounds=1, local_steps=1)
        tops.append(torch.cat(spy.points[1::2]))
    assert torch.equal(tops[0], tops[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_linear_loss_has_the_same_gradient_there(engine: str, tmp_path: Path) -> None:
    runs = [train_quadratic(s, tmp_path, module=Linear(), engine=engine)[0] for s in ([], [SharpnessAware(0.5)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_where_the_gradient_is_zero_it_stays(tmp_path: Path) -> None:
    data = quadratic_data([[1.0, 2.0]], [[0.0, 0.0]])
    trainer, _ = train_quadratic([SharpnessAware(0.5)], tmp_path, module=Quadratic(dim=2), data=data)
    assert trainer.server.vector.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e-42, 1e-20, 1e20, 3e38])
def test_gradients_of_any_size_are_climbed_by_rho(size: float) -> None:
    """Squares of these leave float32, and rho divided by the smallest does too."""
    gradients = torch.tensor([[size, 0.0], [0.0, 0.0]])
    top = climb(torch.ones(2, 2), gradients, 0.5)
    torch.testing.assert_close(top, torch.tensor([[1.5, 1.0], [1.0, 1.0]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_first_pass_is_logged(engine: str, tmp_path: Path) -> None:
    """With one step, the logged loss and accuracy are those at x, as without SAM."""
    options = {"engine": engine, "max_rounds": 1, "local_steps": 1}
    runs = [train(s, tmp_path, mlp(), **options) for s in ([], [SharpnessAware(2.0)])]
    for name in ("train/loss", "train_acc"):
        assert runs[0].summary.last(name) == runs[1].summary.last(name)


def test_metric_objects_would_count_both_passes(tmp_path: Path) -> None:
    class Counting(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mean = nn.Linear(64, 4), MeanMetric()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
            self.mean(loss.detach())
            self.log("mean_loss", self.mean)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="Metric object 'mean_loss', which would also count the second pass"):
        train([SharpnessAware()], tmp_path, Counting())
    train([SharpnessAware(0.0)], tmp_path, Counting(), max_rounds=1)


def test_an_optimizer_that_is_not_elementwise_steps_from_y(tmp_path: Path) -> None:
    """It steps the module's own parameters, which the second pass has moved to y~."""

    def module() -> Classifier:
        model = mlp()
        model.configure_optimizers = lambda: torch.optim.Adafactor(model.parameters(), lr=0.01)
        return model

    runs = [train(s, tmp_path, module(), max_rounds=2).server.vector for s in ([], [SharpnessAware(1e-12)])]
    assert (runs[0] - train([], tmp_path, max_rounds=0).server.vector).norm() > 0.01
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=1e-9)


def test_refuses_to_climb_in_coordinates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"behind SSF .* put SharpnessAware before SSF"):
        train([SSF(IdentitySubspace()), SharpnessAware()], tmp_path)
    train([SSF(IdentitySubspace()), SharpnessAware(0.0)], tmp_path, max_rounds=1)


def test_momentum_behind_it_mixes_the_second_gradient(tmp_path: Path) -> None:
    """MoFedSAM by hand: one dimension, A = 1, b = -4, alpha = 0.5, rho = 0.2, eta = 0.1, K = 2; g~ = y + 4.2.

    Round 1, m = 0: v = 2.1, y = -0.21; v = 0.5 * 3.99 = 1.995, y = -0.4095; m = 0.4095 / 0.2 = 2.0475.
    Round 2: v = 0.5 * 3.7905 + 1.02375 = 2.919, y = -0.7014; v = 0.5 * 3.4986 + 1.02375 = 2.77305, y = -0.978705;
    m = (0.978705 - 0.4095) / 0.2 = 2.846025.
    """
    data = quadratic_data([[1.0]], [[-4.0]])
    options = {"max_rounds": 2, "local_steps": 2, "module": Quadratic(dim=1), "data": data}
    trainer, _ = train_quadratic([SharpnessAware(0.2), ClientMomentum(0.5)], tmp_path, **options)
    assert trainer.server.vector.tolist() == pytest.approx([-0.978705], abs=1e-13)
    assert trainer.stack[1].momentum.tolist() == pytest.approx([2.846025], abs=1e-12)


class Plane(LightningModule):
    """``1/2 |w - b_i|^2 + 1/2 (c - 2)^2``, with a weight w [2] and a bias c."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.layer.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
        self.layer.bias.data.zero_()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        return 0.5 * (weight - batch[1]).square().sum(dim=-1).mean() + 0.5 * (bias - 2.0).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_adaptive_step_by_hand(engine: str, tmp_path: Path) -> None:
    """w = (2, -1), b = (-1, 3), c = 0, eta = 0.5: g = (3, -4, -2), T = (2.5, 1.5, 1), T g = (7.5, -6, -2).

    y~ - y = 0.7 T^2 g / |T g| = 0.7 (18.75, -9, -2) / sqrt(96.25), and g~ = g + y~ - y.
    """
    stack, data = [AdaptiveSharpnessAware(0.7, eta=0.5)], quadratic_data([[1.0, 1.0]], [[-1.0, 3.0]])
    options = {"max_rounds": 1, "local_steps": 1, "module": Plane(), "data": data, "engine": engine}
    trainer, _ = train_quadratic(stack, tmp_path, **options)
    pairs = zip((2.0, -1.0, 0.0), (3.0, -4.0, -2.0), (18.75, -9.0, -2.0), strict=True)
    expected = [y - 0.1 * (g + 0.7 * climbed / math.sqrt(96.25)) for y, g, climbed in pairs]
    assert trainer.server.vector.tolist() == pytest.approx(expected, abs=1e-14)


def test_without_weights_the_adaptive_step_is_that_of_sam(tmp_path: Path) -> None:
    """The quadratics' parameter is no weight by its name."""
    runs = [train_quadratic([c(0.3)], tmp_path)[0] for c in (SharpnessAware, AdaptiveSharpnessAware)]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_adaptive_step_of_length_zero_is_fedavg_to_the_bit(engine: str, tmp_path: Path) -> None:
    stacks: list[Any] = [[], [AdaptiveSharpnessAware(0.0)]]
    runs = [train(stack, tmp_path, cnn(dropout=0.3), engine=engine) for stack in stacks]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


def test_the_adaptive_step_is_named_where_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="put AdaptiveSharpnessAware before SSF"):
        train([SSF(IdentitySubspace()), AdaptiveSharpnessAware()], tmp_path)
    with pytest.raises(ValueError, match=r"`eta=-1.0` of AdaptiveSharpnessAware"):
        AdaptiveSharpnessAware(eta=-1.0)
