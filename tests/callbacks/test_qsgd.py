"""QSGD: rounding by hand, no bias, the bound of its variance, and the lengths of both codes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from worlds import mlp, train

from lfl.callbacks import QSGD
from lfl.callbacks.qsgd import round_at_random
from lfl.comm import Payload
from lfl.randomness import at_a_time, client_keys, uniform

D = 832  # MLP 64-12-4, of four tensors


def sent(codec: QSGD, rows: Tensor) -> Payload:
    ids = torch.arange(len(rows))
    return codec.compress(rows, ids, client_keys(ids, "test"))


def test_levels_are_rounded_up_where_draws_are_below_the_rest() -> None:
    """|v| = 5 and s = 1: l = (.6, .8, 0, 0). With s = 5 levels are whole, whatever is drawn."""
    rows, norms = torch.tensor([[3.0, -4.0, 0.0, 0.0]]), torch.tensor([[5.0]]).double()
    draws = torch.tensor([[0.5, 0.9, 0.0, 0.99]]).double()
    assert round_at_random(rows, norms, 1, draws).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert round_at_random(rows, norms, 5, draws).tolist() == [[3.0, 4.0, 0.0, 0.0]]
    assert sent(QSGD(5), rows).values.tolist() == rows.tolist()


def test_there_is_no_bias_and_the_variance_is_bounded() -> None:
    """``E |Q - v|^2 <= min(D / s^2, sqrt(D) / s) |v|^2`` and ``E nnz <= s (s + sqrt(D))``, D = 16, s = 2."""
    row = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sent(QSGD(2), row.expand(4000, -1)).values
    error = (found.mean(dim=0) - row).abs()
    assert (error <= 4 * found.std(dim=0) / math.sqrt(4000)).all()
    variance = (found - row).square().sum(dim=1).mean()
    assert 0.1 * row.square().sum() < variance <= min(16 / 4, 4 / 2) * row.square().sum()
    assert (found != 0).sum(dim=1).double().mean() <= 2 * (2 + 4)
    levels = found.abs() / row.norm() * 2
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-12)


def test_many_levels_are_exact_and_zero_stays_zero() -> None:
    rows = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(sent(QSGD(2**40), rows).values, rows, rtol=0, atol=1e-10)
    assert sent(QSGD(2), torch.zeros(2, 5)).values.tolist() == [[0.0] * 5] * 2


def test_long_rows_are_rounded_in_pieces_as_at_once() -> None:
    rows = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(0))
    keys = client_keys(torch.arange(2), "test")
    norms = rows.norm(dim=1, keepdim=True, dtype=torch.float64).float().double()
    levels = round_at_random(rows, norms, 4, uniform(keys, 50_000, torch.float64))
    assert at_a_time(keys, 50_000) < 50_000
    assert torch.equal(sent(QSGD(4), rows).values, (norms * rows.sign() * levels / 4).float())


def test_bits_by_hand() -> None:
    """Norm 3, s = 3: levels (0, 2, 1, 0, 0, 2), with gaps 2, 1, 3.

    Codes of 1, 2, 3 have 1, 3, 3 bits: (1 + 3 + 3) + (1 + 1 + 1) + (1 + 3 + 3) = 17. Fixed: a sign and two bits.
    """
    rows = torch.tensor([[0.0, 2.0, -1.0, 0.0, 0.0, 2.0], [0.0] * 6])
    assert sent(QSGD(3), rows).bits_per_client().tolist() == [32 + 17, 32]
    assert sent(QSGD(3, coding="fixed"), rows).bits_per_client().tolist() == [32 + 6 * 3] * 2


def test_bits_of_a_run(tmp_path: Path) -> None:
    """5 clients; s = 4 needs 1 + 3 bits an entry, and a norm for the whole or for each of four tensors."""
    for scope, norms in (("global", 1), ("tensor", 4)):
        codec = QSGD(4, scope=scope, coding="fixed")  # type: ignore[arg-type]
        trainer = train([codec], tmp_path, mlp(), max_rounds=1)
        assert trainer.ledger.up_bits == {"update": 5 * (norms * 64 + D * 4)}
        assert trainer.store.slots == ()
    short = train([QSGD(4)], tmp_path, mlp(), max_rounds=1).ledger.up_bits["update"]
    assert 5 * 64 < short < 5 * (64 + D * 4)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="`levels=0` of QSGD must be a whole number of at least 1"):
        QSGD(0)
    with pytest.raises(ValueError, match="`coding=huffman` of QSGD must be one of elias, fixed"):
        QSGD(coding="huffman")  # type: ignore[arg-type]
