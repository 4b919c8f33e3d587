"""The round: a step on the pooled loss, and whose the model's buffers are."""

from pathlib import Path

import pytest
import torch
from worlds import ONE_ROUND, batch_norm, even_data, mlp, ragged_data, train

from lfl.aggregation import MeanAggregator
from lfl.participation import FullParticipation


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
