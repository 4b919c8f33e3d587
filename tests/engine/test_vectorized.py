"""Clients in one computation: their order, and ragged batches, padded only where that cannot change a loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worlds import Stock, cnn, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import HyperbolicRegularization, Proximal
from lfl.client.step import StepInput
from lfl.engine import LocalPhase
from lfl.models import Classifier


def is_padded(module: Classifier, folder: Path, callbacks: list[Any] | None = None, **options: Any) -> bool:
    data = options.pop("data", None) or ragged_data()
    trainer = train(callbacks or [], folder, module, data, engine="vectorized", max_rounds=1, **options)
    return bool(trainer.engine.padded_width)


@pytest.mark.parametrize("callbacks", [[], [Proximal(0.1)]])
def test_means_over_examples_are_padded(callbacks: list[Any], tmp_path: Path) -> None:
    assert is_padded(mlp(), tmp_path, callbacks)
    assert is_padded(cnn(), tmp_path, callbacks)


def test_random_operations_and_global_features_are_not(tmp_path: Path) -> None:
    """Both are drawn, or computed, for a batch as a whole."""
    assert not is_padded(mlp(dropout=0.2), tmp_path)
    assert not is_padded(mlp(), tmp_path, [HyperbolicRegularization("backbone.features")])


def test_a_loss_that_compares_examples_is_not(tmp_path: Path) -> None:
    class Contrastive(Classifier):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            z = self(batch[0])
            return super().training_step(batch, batch_idx) + 0.01 * (z @ z.T).square().mean()

    assert not is_padded(Contrastive(mlp().backbone), tmp_path)


def test_what_is_logged_must_be_a_mean_too(tmp_path: Path) -> None:
    class Summing(Classifier):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            self.log("brightness", batch[0].sum())
            return super().training_step(batch, batch_idx)

    assert not is_padded(Summing(mlp().backbone), tmp_path)


@pytest.mark.parametrize("trace_steps", [False, True])
@pytest.mark.parametrize("callbacks", [[], [Proximal(0.5)]])
def test_padding_changes_nothing(trace_steps: bool, callbacks: list[Any], tmp_path: Path) -> None:
    """Against one client at a time, in float64: also where one client has a tenth of the others' examples."""
    data = ragged_data(num_clients=6)
    runs = [
        train(callbacks, tmp_path, mlp(), data, engine=engine, trace_steps=trace_steps, local_epochs=3)
        for engine in ("sequential", "vectorized")
    ]
    assert runs[1].engine.padded_width
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-10)
    for name in ("train/loss", "train_acc"):
        assert runs[1].summary.last(name)[0] == pytest.approx(runs[0].summary.last(name)[0], abs=1e-10)


def test_those_with_most_steps_come_first_and_among_them_those_with_most_examples(tmp_path: Path) -> None:
    engine = train([], tmp_path, engine="vectorized", max_rounds=0).engine
    steps, sizes = torch.tensor([2, 4, 2, 4, 2]), torch.tensor([9, 16, 10, 20, 10])
    assert engine.order(torch.arange(5), steps, sizes).tolist() == [3, 1, 2, 4, 0]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_step_is_the_gradient_of_each_clients_loss(engine: str, tmp_path: Path) -> None:
    """Two quadratics, from different points: ``A_i (y_i - b_i)``."""
    trainer, data = train_quadratic([], tmp_path, engine=engine, max_rounds=0)
    clients = [0] if engine == "sequential" else [0, 3]
    params = torch.randn(len(clients), 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = tuple(part.unsqueeze(1) for part in data.gather(torch.tensor(clients)))
    input = StepInput(batch, torch.zeros(len(clients), dtype=torch.int64), torch.zeros(12).double())
    expected = data.curvature[clients] * (params - data.centre[clients])
    for step in (trainer.engine.compute_step, trainer.engine.pure_step):
        gradients, losses, _ = step(params.clone(), input)
        torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(losses, 0.5 * (expected * (params - data.centre[clients])).sum(1))


class Idle(Stock):
    """Has a layer that its loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


@pytest.mark.filterwarnings("ignore:No gradient reaches")
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("trace_steps", [False, True])
def test_a_phase_out_of_the_losss_reach_changes_nothing(engine: str, trace_steps: bool, tmp_path: Path) -> None:
    phases = [LocalPhase(["spare.*"], epochs=1), LocalPhase(["layers.*"], epochs=1)]
    vectors = []
    for local_phases in (phases, phases[1:]):
        torch.manual_seed(0)
        options = {"engine": engine, "trace_steps": trace_steps, "local_phases": local_phases, "max_rounds": 1}
        vectors.append(train([], tmp_path, Idle(), ragged_data(batch_size=100), **options).server.vector)
    torch.testing.assert_close(vectors[0], vectors[1], rtol=0, atol=1e-12)
