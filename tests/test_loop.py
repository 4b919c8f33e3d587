"""The round: its hooks in order, a step on the pooled loss, what is not finite, and whose the model's buffers are."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import ONE_ROUND, Bystander, batch_norm, even_data, mlp, ragged_data, train

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FederatedCallback, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.hooks import NonFiniteUpdateError
from lfl.loggers import CSVLogger
from lfl.participation import FixedParticipation, FullParticipation
from lfl.round import Round


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


def test_hooks_of_a_round_in_order(tmp_path: Path) -> None:
    """Two cohorts of one client; evaluated and logged before the round's end."""
    called: list[str] = []

    def noted(name: str) -> Any:
        def hook(self: Any, first: Any, *more: Any) -> Any:
            called.append(name)
            return more[0] if more else None

        return hook

    names = [
        "on_run_start", "on_round_start", "coordinates", "on_download", "on_cohort_start", "on_step_end",
        "on_cohort_end", "encode", "decode", "on_aggregate", "on_server_step", "on_round_end",
    ]  # fmt: skip
    kind = type("Noted", (FederatedCallback,), {name: noted(name) for name in names})
    train([kind()], tmp_path, max_rounds=1, local_steps=1, participation=FixedParticipation([[0, 3]]))
    cohort = ["on_cohort_start", "on_step_end", "on_cohort_end", "encode"]
    assert called == [*names[:4], *cohort, *cohort, *names[8:]]


def test_updates_that_are_not_finite_stop_the_run_or_are_left_out(tmp_path: Path) -> None:
    class Spoil(FederatedCallback):
        """Client 3's update, in round 2."""

        def on_step_end(self, cohort) -> None:
            if cohort.round.number == 2 and cohort.ids[0] == 3:
                cohort.values[0, 0] = math.inf

    options = {"participation": FixedParticipation([[0, 3]]), "max_rounds": 2}
    with pytest.raises(NonFiniteUpdateError, match=r"The update of client\(s\) 3 in round 2 is not finite"):
        train([Spoil()], tmp_path, **options)
    skipped = train([Spoil()], tmp_path, **options, on_nonfinite="skip")
    alone = train([], tmp_path, max_rounds=2, participation=FixedParticipation([[0, 3], [0]]))
    assert torch.equal(skipped.server.vector, alone.server.vector)
    assert skipped.summary.last("clients_refused") == (1.0, 2)
    assert skipped.summary.last("clients") == (1.0, 2)


def test_linear_codecs_are_decoded_once_and_the_others_for_each_client(tmp_path: Path) -> None:
    """Up to the first that is not linear, and backwards."""
    decoded: list[tuple[str, int]] = []

    class Codec(FederatedCallback):
        def __init__(self, name: str, linear: bool) -> None:
            self.name, self.linear = name, linear

        def encode(self, cohort, payload):
            return payload

        def decode(self, round, values):
            decoded.append((self.name, values.dim()))
            return values

    stack = [Codec("a", True), Codec("b", True), Codec("c", False), Codec("d", True)]
    train(stack, tmp_path, max_rounds=1, participation=FixedParticipation([[0, 3]]))
    assert decoded == [("d", 2), ("c", 2)] * 2 + [("b", 1), ("a", 1)]


class Full(CSVLogger):
    """Finds its disk full in a round."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self.number = number

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if step == self.number:
            raise OSError(errno.ENOSPC, "Cannot write metrics.csv: No space left on device.")
        super().log_metrics(metrics, step)


def test_a_log_that_cannot_be_written_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": Checkpointing(every_n_rounds=100), "max_rounds": 4}
    with pytest.raises(
        OSError,
        match=r"^\[Errno \d+\] Cannot write metrics.csv: No space left on device\. Round 2 is in .*last.ckpt: go",
    ):
        train([Scaffold()], tmp_path / "a", logger=[Full(tmp_path / "other", 2)], **options)
    resumed = train([Scaffold()], tmp_path / "a", ckpt_path="last", **options)
    unbroken = train([Scaffold()], tmp_path / "b", **options)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    files = [(Path(t.log_dir) / "metrics.csv").read_bytes() for t in (resumed, unbroken)]
    assert files[0] == files[1]


def test_the_first_failure_is_raised_though_the_checkpoint_fails_too(tmp_path: Path) -> None:
    class Block(Bystander):
        """Puts a file where checkpoints go."""

        def on_round_start(self, round: Round) -> None:
            (self.run.folder / "checkpoints").touch()

    with pytest.raises(OSError, match=r"Cannot write metrics\.csv") as info:
        train([Block()], tmp_path, logger=[Full(tmp_path / "other", 2)], checkpoint=Checkpointing(), max_rounds=4)
    assert "last.ckpt" in str(info.value.__cause__)


def test_the_csv_file_itself_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows come back in the run that goes on, as if nothing had happened."""
    write = os.write

    def limited(file: int, data: bytes) -> int:
        if data.startswith(b"3,"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    options: dict[str, Any] = {"checkpoint": Checkpointing(every_n_rounds=100), "max_rounds": 5}
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", limited)
        with pytest.raises(OSError, match=r"Cannot write .*metrics.csv: No space left on device\. .* Round 3 is in"):
            train([], tmp_path / "a", **options)
    resumed = train([], tmp_path / "a", ckpt_path="last", **options)
    unbroken = train([], tmp_path / "b", **options)
    files = [(Path(t.log_dir) / "metrics.csv").read_bytes() for t in (resumed, unbroken)]
    assert files[0] == files[1]
