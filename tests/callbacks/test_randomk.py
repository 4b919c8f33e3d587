"""Random-k, and a number of entries for each client."""

import math
from pathlib import Path

import pytest
import torch
from worlds import train

from lfl.callbacks import RandomK, TopK
from lfl.callbacks.topk import keep_largest
from lfl.participation import FixedParticipation


def test_random_k_with_error_feedback_loses_nothing(tmp_path: Path) -> None:
    """What the server moved, times the clients, and what they still hold is what they found, when x never moves."""
    found = []

    class Found(RandomK):
        def encode(self, cohort, payload):
            found.append(payload.values.clone())
            sent = super().encode(cohort, payload)
            assert ((sent.values != 0).sum(dim=1) <= sent.bits // 64).all()
            return sent

    schedule = FixedParticipation([[1, 4]])
    trainer = train([Found([3, 5, 3, 3, 7, 3, 3, 3])], tmp_path, participation=schedule)
    start = train([], tmp_path, max_rounds=0).server.vector
    held = trainer.store.gather("random-k/error", torch.tensor([1, 4])).sum(dim=0)
    total = torch.cat(found).sum(dim=0)
    moved = 2 * (trainer.server.vector - start)
    torch.testing.assert_close(moved + held, total, rtol=0, atol=1e-12)
    assert trainer.ledger.totals["up"] == 3 * (5 + 7) * 64


def test_random_k_without_error_feedback_is_scaled(tmp_path: Path) -> None:
    class Check(RandomK):
        def encode(self, cohort, payload):
            sent = super().encode(cohort, payload).values
            kept = sent != 0
            torch.testing.assert_close(sent[kept], payload.values[kept] * (sent.shape[1] / 30), rtol=1e-14, atol=0)
            assert (kept.sum(dim=1) <= 30).all()
            return type(payload)(sent, 0)

    trainer = train([Check(30, error_feedback=False)], tmp_path)
    assert not trainer.store.slots


def test_random_k_of_everything_is_fedavg(tmp_path: Path) -> None:
    both = [train(stack, tmp_path).server.vector for stack in ([], [RandomK(1.0)])]
    assert torch.equal(*both)


def test_a_number_of_entries_for_each_client(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, -3.0, 2.0], [1.0, -1.0, 1.0]])
    kept = keep_largest(values, torch.tensor([2, 1]))
    assert kept.tolist() == [[0.0, -3.0, 2.0], [1.0, 0.0, 0.0]]
    trainer = train([TopK([3] * 4 + [7] * 4)], tmp_path, participation=FixedParticipation([[1, 4]]), max_rounds=1)
    index_bits = math.ceil(math.log2(trainer.layout.dim))
    assert trainer.ledger.totals["up"] == (3 + 7) * (64 + index_bits)
    with pytest.raises(ValueError, match="`k` lists 2 numbers, but there are 8 clients"):
        train([TopK([3, 3])], tmp_path)
    with pytest.raises(ValueError, match="`k=0` must be at least 1"):
        RandomK([1, 0])
    with pytest.raises(ValueError, match="`k=1000000` must not exceed D="):
        train([RandomK(1000000)], tmp_path)
