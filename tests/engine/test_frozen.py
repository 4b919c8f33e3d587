"""Features of the model at x: one pass for many batches, where examples do not see each other."""

from pathlib import Path

import pytest
import torch
from contract.methods import fedmrur
from torch import Tensor, nn
from worlds import Bystander, batch_norm, cnn, even_data, ragged_data, train

from lfl.client.step import at_row
from lfl.engine.frozen import FrozenModel
from lfl.models import CifarResNet, Classifier
from lfl.participation import FixedParticipation


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


class Rows(Bystander):
    """Every client has a frozen model of its own, and how far what is read of it is from its forward is kept."""

    global_features = ("backbone",)
    frozen_rows = ("mine",)

    def __init__(self) -> None:
        self.furthest, self.compared, self.passes, self.steps = 0.0, 0, 0, 0

    def on_cohort_start(self, cohort) -> None:
        draws = torch.Generator().manual_seed(int(cohort.ids[0]))
        noise = torch.randn(cohort.values.shape, generator=draws, dtype=torch.float64)
        cohort.loss_rows["mine"] = cohort.round.server + 0.1 * noise
        self.steps += int(cohort.num_steps.max())

    def client_loss(self, client, loss):
        found = client.global_features.get(at_row("mine", "backbone"))
        if found is None:  # in the trials before a run
            return loss
        assert not found.requires_grad
        return loss + 0.01 * (client.features["backbone"] - found).square().mean()

    features = ("backbone",)

    def wrap_gradient(self, cohort, gradient):
        def compared(params, step):
            for part in step.batches:
                rows = cohort.loss_rows["mine"][part.plan.rows]
                for row, x, y in zip(rows, part.batch[0], part.features[at_row("mine", "backbone")], strict=True):
                    module = self.run.model.module.eval()
                    views = self.run.layout.views(row)
                    expected = torch.func.functional_call(module, views, (x,))
                    module.train()
                    self.furthest = max(self.furthest, float((expected - y).abs().max()))
                    self.compared += 1
            return gradient(params, step)

        return compared


@pytest.mark.parametrize(("engine", "size"), [("sequential", 1), ("vectorized", 3), ("vectorized", 1)])
def test_rows_are_read_at_the_clients_own_parameters(engine: str, size: int, tmp_path: Path) -> None:
    rows = Rows()
    train([rows], tmp_path, cnn(), engine=engine, cohort_size=size)
    assert rows.compared > 50
    assert rows.furthest < 1e-13


@pytest.mark.parametrize(("engine", "size"), [("sequential", 1), ("vectorized", 3)])
@pytest.mark.parametrize("room", [2**27, 0])
def test_examples_that_come_again_are_read_once(
    engine: str, size: int, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients of 2 to 50 examples, in three epochs; where they are too many, they are read batch by batch."""
    monkeypatch.setattr("lfl.engine.frozen._KEPT_BYTES", room)
    read: list[int] = []
    pass_of = FrozenModel._read_rows

    def counted(self, rows, keys, some):
        read.extend(plan.indices.numel() for plan, _ in some)
        return pass_of(self, rows, keys, some)

    monkeypatch.setattr(FrozenModel, "_read_rows", counted)
    rows = Rows()
    data = ragged_data()
    train([rows], tmp_path, cnn(), data, engine=engine, cohort_size=size, local_epochs=3, max_rounds=1)
    sizes = data.client_sizes[rows.run.participation.select(1, data.num_clients, 0)]
    assert rows.furthest < 1e-13
    assert rows.compared == 3 * int((sizes / data.batch_size).ceil().sum())
    at_least = int(sizes.sum()) * (1 if room else 3)
    assert at_least <= sum(read) <= at_least + (0 if room else 256)  # the first pass told that they were too many


@pytest.mark.parametrize("kept", [{"local_sampling": "replacement", "local_steps": 40}, {"local_epochs": 2}])
def test_how_batches_are_drawn_does_not_matter(kept: dict[str, object], tmp_path: Path) -> None:
    rows = Rows()
    train([rows], tmp_path, cnn(), engine="vectorized", max_rounds=1, **kept)
    assert rows.furthest < 1e-13


def test_rows_of_a_model_with_statistics_are_read_at_each_step(tmp_path: Path) -> None:
    rows = Rows()
    participation = FixedParticipation([[0, 2]])
    train([rows], tmp_path, batch_norm(), even_data(5), participation=participation, max_rounds=1)
    assert rows.furthest < 1e-13
    assert rows.compared == rows.steps


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_rows_that_are_read_wrongly_are_found_out(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of round 1 is compared with one client alone; the run goes on batch by batch, to the same numbers."""
    expected = train([Rows()], tmp_path, cnn(), engine=engine).server.vector
    read = FrozenModel._read_rows

    def doubled(*args):
        return ({name: 2 * value for name, value in features.items()} for features in read(*args))

    monkeypatch.setattr(FrozenModel, "_read_rows", doubled)
    with pytest.warns(UserWarning, match="reads the features of the global model batch by batch"):
        found = train([Rows()], tmp_path, cnn(), engine=engine).server.vector
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
