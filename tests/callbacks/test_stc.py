"""Sparse ternary compression in both directions: by hand, what is kept, and its bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from two_clients import path_of
from worlds import Rounds, train

from lfl.callbacks import SSF, STC, Downlink, FederatedCallback, TopK
from lfl.comm import Payload
from lfl.participation import FixedParticipation, FullParticipation


def sent(codec: STC, rows: torch.Tensor) -> Payload:
    ids = torch.arange(len(rows))
    return codec.compress(rows, ids, ids)


def test_the_largest_have_their_mean_magnitude() -> None:
    """p = 1/2: unary gaps 1 and 2, two signs, a float; a row with one entry: gap 2, one sign. A tie: the lowest."""
    rows = torch.tensor([[3.0, -1.0, -2.0, 0.5], [0.0, 4.0, 0.0, 0.0], [1.0, -1.0, 1.0, 1.0]])
    payload = sent(STC(2), rows)
    assert payload.values.tolist() == [[2.5, 0.0, -2.5, 0.0], [0.0, 2.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0]]
    assert payload.bits_per_client().tolist() == [32 + 1 + 2 + 2, 32 + 2 + 1, 32 + 1 + 1 + 2]


def test_error_scale_and_a_constant_magnitude() -> None:
    """``|a - C(a)|^2 = |a|^2 - k mu^2``; C(ca) = c C(a); equal magnitudes are kept exactly by k = D."""
    rows = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = sent(STC(0.05), rows).values
    mu = values.abs().amax(dim=1)
    assert ((values != 0).sum(dim=1) == 50).all()
    error = (rows - values).square().sum(dim=1)
    torch.testing.assert_close(error, rows.square().sum(dim=1) - 50 * mu.square())
    assert torch.equal(sent(STC(0.05), 4 * rows).values, 4 * values)
    assert torch.equal(sent(STC(1.0), rows.sign()).values, rows.sign())


def test_rounds_by_hand(tmp_path: Path) -> None:
    """Clients move by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); k = 1, so that magnitudes are kept.

    1. (2, 0), (0, 2) are sent as they are; A = (1, 1), a tie: (1, 0) goes down, E = (0, 1), x = (1, 0).
    2. (1.5, 0), (0, 2); A = (.75, 1) + E = (.75, 2): (0, 2), E = (.75, 0), x = (1, 2).
    3. (1.5, -1): (1.5, 0), e_1 = (0, -1); (0, 0). A = (.75, 0) + E = (1.5, 0) = Dn, E = 0, x = (2.5, 2).
    4. (.75, -1) + e_1 = (.75, -2): (0, -2), e_1 = (.75, 0); (0, 0). A = (0, -1) = Dn, x = (2.5, 1).
    """
    path, trainer = path_of([STC(1)], tmp_path, rounds=4)
    assert path == [[1.0, 0.0], [1.0, 2.0], [2.5, 2.0], [2.5, 1.0]]
    assert trainer.store.gather("stc/error", torch.arange(2)).tolist() == [[0.75, 0.0], [0.0, 0.0]]
    assert trainer.stack[0].state_dict()["residual"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_both_ways_nothing_is_lost(scope: Any, tmp_path: Path) -> None:
    """All clients, equal weights: what went down, E and the mean of the e_i are the sum of the mean updates."""

    class Came(FederatedCallback):
        total: Any = 0.0

        def on_cohort_end(self, cohort: Any) -> None:
            self.total = self.total + cohort.delta.sum(dim=0) / 8

    came = Came()
    start = train([], tmp_path, max_rounds=0).server.vector
    trainer = train([came, STC(0.05, scope)], tmp_path, max_rounds=4, participation=FullParticipation())
    residual = trainer.stack[1].state_dict()["residual"]
    kept = trainer.store.gather("stc/error", torch.arange(8)).mean(dim=0)
    assert min(residual.norm(), kept.norm()) > 1e-2
    torch.testing.assert_close(trainer.server.vector - start + residual + kept, came.total, rtol=0, atol=1e-12)


def test_absent_clients_are_charged_all_messages_they_missed(tmp_path: Path) -> None:
    """Each round's message is 84 signs, their gaps, and a double; client 1 lacks three of them in round 4."""
    rounds = Rounds()
    schedule = FixedParticipation([[0, 1], [0], [0], [0, 1]])
    trainer = train([STC(0.1), rounds], tmp_path, max_rounds=4, participation=schedule)
    sizes = [round.step_bits for round in rounds.kept]
    assert all(84 * 2 + 64 < size < 84 * 10 + 64 for size in sizes)
    assert trainer.ledger.down_bits == {"model": sizes[2] + sum(sizes[:3])}


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`scope=tensor` of STC needs a share in \(0, 1\] of each tensor, not `k=5`"):
        STC(5, "tensor")
    with pytest.raises(ValueError, match="`k=1000000` must not exceed D="):
        train([STC(1000000)], tmp_path)
    with pytest.raises(ValueError, match="STC and Downlink have no meaning together: both compress the way down"):
        train([STC(), Downlink(TopK(0.1))], tmp_path)
    with pytest.raises(ValueError, match="STC and SSF have no meaning together"):
        train([STC(), SSF()], tmp_path)
