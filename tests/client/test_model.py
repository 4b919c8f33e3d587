"""The one module of all clients: its buffers, tied weights and frozen layers, and what it may do."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy
from worlds import ONE_ROUND, SmallCNN, Stock, Strange, batch_norm, even_data, mlp, ragged_data, train

from lfl.models import CifarResNet, Classifier
from lfl.participation import FixedParticipation


def test_a_batch_of_one_uses_the_running_statistics(tmp_path: Path) -> None:
    """torch refuses to normalise one example by its own variance; a last partial batch can be that small."""
    data = ragged_data(8, batch_size=1)
    trainer = train([], tmp_path, batch_norm(), data, max_rounds=1)
    assert not trainer.server_state_dict()["backbone.norm.running_mean"].any()
    assert trainer.server.vector.isfinite().all()


def test_batch_norm_resnet_round_trip(tmp_path: Path) -> None:
    """One round on real residual blocks: every entry of the state dict keeps its type, and moves if it should."""
    torch.manual_seed(0)
    module = Classifier(CifarResNet(depth=8, in_channels=1, num_classes=4, norm="batch"), lr=0.05)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = train([], tmp_path, module, even_data(), precision="32-true", **ONE_ROUND)
    after = trainer.server_state_dict()
    assert {n: v.dtype for n, v in after.items()} == {n: v.dtype for n, v in before.items()}
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(moved) == len(before)
    module.load_state_dict(after)
    assert sum(value.isfinite().all() for value in module.state_dict().values()) == len(before)


def test_ties_frozen_layers_and_odd_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Strange()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = train([], tmp_path, module, ragged_data(), precision="32-true", max_rounds=2)
    after = trainer.server_state_dict()
    assert trainer.layout.names == ("encoder.weight", "decoder.bias")
    assert torch.equal(after["encoder.weight"], after["decoder.weight"])
    assert module.decoder.weight is module.encoder.weight
    assert not torch.equal(after["encoder.weight"], before["encoder.weight"])
    for name in ("frozen.weight", "frozen.bias", "table", "scale", "flag"):
        assert torch.equal(after[name], before[name]), name
    assert after["steps"].dtype == torch.int64
    assert after["steps"].shape == ()
    assert after["steps"] > 0


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_tied_weights_train_on_both_engines(engine: str, tmp_path: Path) -> None:
    class Tied(Strange):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            hidden = self.decoder(self.encoder(x.flatten(1)).tanh())
            return nn.functional.cross_entropy(self.frozen(hidden), y)

    def module() -> Tied:
        torch.manual_seed(0)
        return Tied()

    runs = [train([], tmp_path, module(), engine=e) for e in ("sequential", engine)]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


def test_plain_cnn_has_no_buffers(tmp_path: Path) -> None:
    trainer = train([], tmp_path, Classifier(SmallCNN(), lr=0.1), max_rounds=1)
    assert trainer.server.buffers.numel() == 0
    assert mlp().state_dict().keys()


def test_a_buffer_that_is_replaced_does_not_leak_to_the_next_client(tmp_path: Path) -> None:
    """``self.ema = ...`` puts another tensor in the buffer's place; every client starts from the server's."""

    class Replacing(Strange):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ema", torch.zeros(1))
            self.seen: list[float] = []

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            self.seen.append(float(self.ema))
            self.ema = self.ema * 0.9 + 1
            return super().training_step(batch, batch_idx)

    module = Replacing()
    options = {"max_rounds": 1, "local_steps": 2, "participation": FixedParticipation([[0, 1, 2]])}
    trainer = train([], tmp_path, module, ragged_data(), precision="32-true", **options)
    assert module.seen == pytest.approx([0.0, 1.0] * 3)
    assert float(trainer.server_state_dict()["ema"]) == pytest.approx(1.9)


def test_a_module_that_keeps_metric_objects(tmp_path: Path) -> None:
    """Their state is changed in place: the sequential engine computes it over the round, and over validation."""

    class WithMetrics(Stock):
        def __init__(self) -> None:
            super().__init__()
            self.accuracy = MulticlassAccuracy(4, average="micro")
            self.val_accuracy = MulticlassAccuracy(4, average="micro")

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            logits = self.layers(x)
            self.accuracy(logits, y)
            self.log("metric_acc", self.accuracy, on_epoch=True)
            self.log("mean_acc", (logits.argmax(1) == y).double().mean())
            return nn.functional.cross_entropy(logits, y)

        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            self.val_accuracy(self.layers(batch[0]), batch[1])
            self.log("val_metric", self.val_accuracy)

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="sequential engine"):
        run = train([], tmp_path, WithMetrics(), engine="auto", max_rounds=2, check_val_every_n_rounds=1)
    assert run.summary.last("metric_acc")[0] == pytest.approx(run.summary.last("mean_acc")[0], abs=1e-6)
    assert 0 < run.summary.last("val_metric")[0] <= 1


def test_a_gradient_penalty_can_be_trained(tmp_path: Path) -> None:
    class Penalised(Stock):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x = batch[0].requires_grad_()
            logits = self.layers(x)
            (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
            return nn.functional.cross_entropy(logits, batch[1]) + gradient.square().mean()

    torch.manual_seed(0)
    run = train([], tmp_path, Penalised(), max_rounds=1)
    assert run.server.vector.isfinite().all()


def test_hooks_may_log(tmp_path: Path) -> None:
    class Logging(Stock):
        def on_train_start(self) -> None:
            self.log("started", 1.0)

        def on_train_epoch_end(self) -> None:
            self.log("round_end", 7.0)

    torch.manual_seed(0)
    run = train([], tmp_path, Logging(), max_rounds=2)
    assert run.summary.last("round_end") == (7.0, 2)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_loss_that_is_no_scalar_is_named(engine: str, tmp_path: Path) -> None:
    module = mlp()
    module.training_step = lambda batch, batch_idx: module.backbone(batch[0]).sum(dim=1)
    with pytest.raises((TypeError, ValueError), match="must return a scalar loss, got a tensor of shape"):
        train([], tmp_path, module, engine=engine)
