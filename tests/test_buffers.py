"""Buffers, tied weights and frozen layers survive a round with their types and values."""

import re
from pathlib import Path

import pytest
import torch
from conftest import SmallCNN, mlp, ragged_data, train
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.callbacks import FederatedCallback
from lfl.data import ClassesPerClientPartitioner
from lfl.models import CifarResNet, Classifier
from lfl.participation import FixedParticipation


class BatchNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.flatten(1)))


def batch_norm() -> Classifier:
    torch.manual_seed(0)
    return Classifier(BatchNormNet(), lr=0.1)


def even_data(batch_size: int = 20):
    """Clients with several examples: BatchNorm in training cannot take one alone."""
    return ragged_data(4, partitioner=ClassesPerClientPartitioner(2), batch_size=batch_size)


ONE_ROUND = {"max_rounds": 1, "participation": FixedParticipation([[0, 2]]), "local_epochs": 1}


def test_batch_norm_statistics_are_averaged_and_counters_are_not(tmp_path: Path) -> None:
    """After one epoch of one batch: running mean = 0.9 * 0 + 0.1 * mean of the batch, averaged over the clients."""
    data = even_data(batch_size=1000)
    with pytest.warns(UserWarning, match=r"sequential engine.*running_mean.*in place"):
        trainer = train([], tmp_path, batch_norm(), data, engine="auto", **ONE_ROUND)
    means = [data.gather(data.partition.client(client)[None])[0][0].flatten(1).mean(dim=0) for client in (0, 2)]
    state = trainer.server_state_dict()
    expected = 0.1 * torch.stack(means).mean(dim=0)
    torch.testing.assert_close(state["backbone.norm.running_mean"], expected, rtol=0, atol=1e-12)
    assert state["backbone.norm.num_batches_tracked"] == 1


def test_counters_end_as_the_largest_of_any_client(tmp_path: Path) -> None:
    data = even_data(batch_size=5)
    trainer = train([], tmp_path, batch_norm(), data, **ONE_ROUND)
    counter = trainer.server_state_dict()["backbone.norm.num_batches_tracked"]
    assert counter.dtype == torch.int64
    # A last batch of one example is normalised by the running statistics and does not count.
    batches = [size // 5 + (size % 5 > 1) for size in data.client_sizes[[0, 2]].tolist()]
    assert counter == max(batches)


def test_the_server_may_keep_its_statistics(tmp_path: Path) -> None:
    trainer = train([], tmp_path, batch_norm(), even_data(), buffers="server", **ONE_ROUND)
    assert not trainer.server_state_dict()["backbone.norm.running_mean"].any()


def test_clients_may_keep_their_statistics(tmp_path: Path) -> None:
    options = {**ONE_ROUND, "max_rounds": 2}
    trainer = train([], tmp_path, batch_norm(), even_data(), buffers="client", **options)
    rows = trainer.store.gather("buffers", torch.tensor([0, 1, 2]))
    assert rows[0].isfinite().all()
    assert rows[1].isnan().all()
    assert not torch.equal(rows[0], rows[2])
    assert not trainer.server_state_dict()["backbone.norm.running_mean"].any()
    assert "buffers" not in trainer.ledger.up_bits


def test_buffers_are_counted_both_ways(tmp_path: Path) -> None:
    trainer = train([], tmp_path, batch_norm(), even_data(), precision="32-true", **ONE_ROUND)
    assert trainer.ledger.up_bits == {"update": 2 * 388 * 32, "buffers": 2 * 128 * 32}
    assert trainer.ledger.down_bits == {"model": 2 * 388 * 32, "buffers": 2 * 128 * 32}


def test_vectorized_refuses_batch_norm_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Classifier: .*running_mean"):
        train([], tmp_path, batch_norm(), even_data(), engine="vectorized", **ONE_ROUND)


def test_a_batch_of_one_uses_the_running_statistics(tmp_path: Path) -> None:
    """torch refuses to normalise one example by its own variance; a last partial batch can be that small."""
    data = ragged_data(8, batch_size=1)
    trainer = train([], tmp_path, batch_norm(), data, max_rounds=1)
    assert not trainer.server_state_dict()["backbone.norm.running_mean"].any()
    assert trainer.server.vector.isfinite().all()


class Failing(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[1]) == 3:
            raise RuntimeError("three is unlucky")
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_error_in_a_step_says_where(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unlucky") as caught:
        train([], tmp_path, Failing(), ragged_data(), max_rounds=20)
    assert re.fullmatch(r"in round \d+, local step \d+ of client\(s\) \[\d\]", caught.value.__notes__[0])


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


class Strange(LightningModule):
    """A tied weight, a frozen layer, an integer table, a 0-d counter that counts steps, and a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 64, bias=False)
        self.decoder = nn.Linear(64, 64)
        self.decoder.weight = self.encoder.weight
        self.frozen = nn.Linear(64, 4).requires_grad_(False)
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(1 / 3, dtype=torch.float32))
        self.register_buffer("flag", torch.tensor(False))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.steps += 1
        hidden = self.decoder(self.encoder(x.flatten(1)).tanh())
        return nn.functional.cross_entropy(self.frozen(hidden) * self.scale, y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)


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


def test_a_counter_in_the_step_is_reason_enough_not_to_vectorize(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the buffer 'steps' in place"):
        train([], tmp_path, Strange(), ragged_data(), engine="vectorized")


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


def test_a_second_client_starts_with_nothing_of_the_first(tmp_path: Path) -> None:
    """BatchNorm statistics and momentum of client 0 do not reach client 2: alone it does the same."""

    def module() -> Classifier:
        torch.manual_seed(0)
        return Classifier(BatchNormNet(), lr=0.1, momentum=0.9)

    class Keep(FederatedCallback):
        def __init__(self) -> None:
            self.kept: dict[int, Tensor] = {}

        def on_cohort_end(self, cohort) -> None:
            self.kept[int(cohort.ids[0])] = torch.cat([cohort.delta[0], cohort.buffers[0]])

    together, alone = Keep(), Keep()
    train([together], tmp_path, module(), even_data(), **ONE_ROUND)
    train([alone], tmp_path, module(), even_data(), **{**ONE_ROUND, "participation": FixedParticipation([[2]])})
    assert torch.equal(together.kept[2], alone.kept[2])


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
    assert module.seen == pytest.approx([0.0, *[0.0, 1.0] * 3])  # the first is a look before the run
    assert float(trainer.server_state_dict()["ema"]) == pytest.approx(1.9)
