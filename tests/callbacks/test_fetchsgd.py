"""FetchSGD: the sketch, rounds by hand with one that loses nothing, what moves, and its bits."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from two_clients import path_of
from worlds import Bystander, mlp, train

from lfl.aggregation import CoordinateMedian
from lfl.callbacks import SSF, FederatedCallback, FetchSGD, TopK
from lfl.callbacks.fetchsgd import CountSketch, _median
from lfl.participation import FixedParticipation

CPU = torch.device("cpu")


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_sketch_by_hand() -> None:
    """Entries 0 and 1 share a bucket of the first row, 1 and 2 one of the second, there with opposite signs."""
    buckets, signs = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, -1], [1, 1, -1], [1, 1, 1]])
    sketch = CountSketch(buckets.int(), signs.to(torch.int8), 2)
    table = sketch.of(torch.tensor([[1.0, 2.0, 4.0]]))[0]
    assert table.tolist() == [[3.0, -4.0], [1.0, -2.0], [6.0, 1.0]]
    # Entry 0 reads (3, 1, 1), entry 1 (3, -2, 6), entry 2 (4, 2, 6).
    assert sketch.estimate(table).tolist() == [1.0, 3.0, 4.0]
    assert sketch.cells(torch.tensor([False, False, True])).tolist() == [[False, True], [False, True], [True, False]]


@pytest.mark.parametrize("rows", [1, 3, 5, 9])
def test_medians(rows: int) -> None:
    values = torch.randint(-5, 5, (rows, 200), generator=torch.Generator().manual_seed(rows)).double()
    assert torch.equal(_median(list(values.clone())), values.median(dim=0).values)


def test_sketch_is_linear_exact_on_one_entry_and_unbiased() -> None:
    sketch = CountSketch.draw(3, 7, 40, 0, CPU)
    a, b = rows(2, 1, 40)
    torch.testing.assert_close(sketch.of(a + 2 * b), sketch.of(a) + 2 * sketch.of(b), rtol=0, atol=1e-13)
    single = torch.zeros(1, 40)
    single[0, 13] = -2.5
    assert float(sketch.estimate(sketch.of(single)[0])[13]) == -2.5
    found = torch.stack([s.estimate(s.of(a)[0]) for s in (CountSketch.draw(1, 7, 40, n, CPU) for n in range(1000))])
    assert ((found.mean(dim=0) - a[0]).abs() <= 4 * found.std(dim=0) / math.sqrt(1000)).all()
    assert set(sketch.signs.flatten().tolist()) == {-1, 1}
    assert set(sketch.buckets.flatten().tolist()) == set(range(7))


class Identity(Bystander):
    """Stands behind FetchSGD: every entry has a bucket of its own."""

    def on_run_start(self, federation: Any) -> None:
        super().on_run_start(federation)
        dim = federation.layout.dim
        buckets, signs = torch.arange(dim, dtype=torch.int32)[None], torch.ones(1, dim, dtype=torch.int8)
        self.run.callbacks[0].sketch = CountSketch(buckets, signs, dim)


@pytest.mark.parametrize(
    ("removal", "mask", "momentum"),
    [("zero", False, [1.25, 1.5]), ("zero", True, [0.75, 0.0]), ("subtract", False, [1.25, 1.5])],
)
def test_rounds_by_hand(removal: Any, mask: bool, momentum: list[float], tmp_path: Path) -> None:
    """Clients move by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); rho = 1/2, k = 1, no collisions.

    1. Mean (1, 1) = S_u = S_e: a tie, d = (1, 0), S_e = (0, 1), x = (1, 0). With masking S_u = (0, 1).
    2. Mean (.75, 1): S_u = (1.25, 1.5), S_e = (1.25, 2.5), d = (0, 2.5), x = (1, 2.5). With masking S_u = (.75, 1.5),
       and (.75, 0) after.
    """
    stack = [FetchSGD(1, 2, k=1, momentum=0.5, removal=removal, mask_momentum=mask), Identity()]
    path, trainer = path_of(stack, tmp_path, rounds=2)
    assert path == [[1.0, 0.0], [1.0, 2.5]]
    assert stack[0].momentum_table.tolist() == [momentum]
    assert stack[0].error_table.tolist() == [[momentum[0], 0.0]]
    # Up a table of two doubles; down two doubles, then a double and an index of one bit.
    assert trainer.ledger.totals == {"up": 2 * 2 * 128, "down": 2 * 128 + 2 * 65}


def test_without_collisions_and_momentum_everything_is_fedavg(tmp_path: Path) -> None:
    stack: list[FederatedCallback] = [FetchSGD(1, 832, k=1.0, momentum=0.0), Identity()]
    plain, whole = (train(callbacks, tmp_path, mlp()).server.vector for callbacks in ([], stack))
    torch.testing.assert_close(whole, plain, rtol=0, atol=1e-12)


def test_colliding_cells_are_emptied_or_reduced() -> None:
    """Entries (5, 1, 0) in buckets (0, 0, 1): estimates (6, 6, 0), d = (6, 0, 0). Both removals leave nothing of 6.

    With k = 2 d = (6, 6, 0): S(d) has 12, so that subtracting leaves -6, and zeroing nothing.
    """
    sketch = CountSketch(torch.tensor([[0, 0, 1]]).int(), torch.ones(1, 3, dtype=torch.int8), 2)
    for removal, left in (("zero", [[0.0, 0.0]]), ("subtract", [[-6.0, 0.0]])):
        method = FetchSGD(1, 2, k=2, removal=removal)  # type: ignore[arg-type]
        method.sketch, method._count = sketch, 2
        method.momentum_table = method.error_table = torch.zeros(1, 2)
        assert method.decode(None, torch.tensor([6.0, 0.0])).tolist() == [6.0, 6.0, 0.0]  # type: ignore[arg-type]
        assert method.error_table.tolist() == left


def test_k_entries_move_and_are_charged(tmp_path: Path) -> None:
    """Up 3 * 50 doubles. Down 20 doubles with 10 bits of an index, for each of the rounds that a client missed."""
    method = FetchSGD(3, 50, k=20)
    before = train([FetchSGD(3, 50, k=20)], tmp_path, mlp(), max_rounds=2).server.vector
    schedule = FixedParticipation([[0, 1], [0], [0, 1]])
    trainer = train([method], tmp_path, mlp(), max_rounds=3, participation=schedule)
    assert trainer.ledger.up_bits == {"update": 2 * 3 * 50 * 64}
    assert trainer.ledger.down_bits == {"model": 20 * 74 + 2 * 20 * 74}
    assert trainer.store.slots == ()
    after = train([FetchSGD(3, 50, k=20)], tmp_path, mlp(), max_rounds=3).server.vector
    assert int((after != before).sum()) == 20


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`rows=4` of FetchSGD must be odd"):
        FetchSGD(rows=4)
    with pytest.raises(ValueError, match="TopK stands before FetchSGD"):
        train([TopK(0.1), FetchSGD(3, 50)], tmp_path)
    with pytest.raises(ValueError, match="FetchSGD sketches parameters, but SSF"):
        train([SSF(), FetchSGD(3, 50)], tmp_path)
    with pytest.raises(ValueError, match="FetchSGD decodes the mean of tables, but CoordinateMedian"):
        train([FetchSGD(3, 50)], tmp_path, aggregator=CoordinateMedian())
