"""Features of the model at x: one pass for many batches, where examples do not see each other."""

from pathlib import Path

import torch
from contract.methods import fedmrur
from torch import Tensor, nn
from worlds import (
    Bystander,
    cnn,
    train,
)

from lfl.models import CifarResNet, Classifier


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
