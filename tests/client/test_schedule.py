"""Which examples a client sees when."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfl.client.schedule import LocalSchedule, Padding, count_calls, steps_per_epoch_of
from lfl.randomness import client_keys


def walk(sizes: list[int], steps: list[int], batch_size: int, ids: list[int] | None = None) -> list[list[list[int]]]:
    """Each client's batches in order; clients are given most steps first."""
    ids = ids or list(range(len(sizes)))
    width = max(sizes)
    indices = torch.arange(width).expand(len(sizes), width) + 1000 * torch.tensor(ids)[:, None]
    keys = client_keys(torch.tensor(ids), 0, "shuffle")
    plans = LocalSchedule(indices, torch.tensor(sizes), torch.tensor(steps), batch_size, keys, keys)
    seen: list[list[list[int]]] = [[] for _ in sizes]
    for plan in plans:
        rows = range(*plan.rows.indices(len(sizes))) if isinstance(plan.rows, slice) else plan.rows.tolist()
        assert plan.keys.shape == plan.indices.shape
        for row, batch in zip(rows, plan.indices.tolist(), strict=True):
            assert len(seen[row]) == plan.step
            assert row < plan.active
            seen[row].append([i - 1000 * ids[row] for i in batch])
    return seen


cohorts = st.lists(st.integers(1, 23), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(sizes=cohorts, batch_size=st.integers(1, 9), epochs=st.integers(1, 3))
def test_every_epoch_is_a_permutation_in_batches(sizes: list[int], batch_size: int, epochs: int) -> None:
    sizes = sorted(sizes, reverse=True)
    per_epoch = steps_per_epoch_of(torch.tensor(sizes), batch_size)
    for size, count, batches in zip(
        sizes, per_epoch.tolist(), walk(sizes, (epochs * per_epoch).tolist(), batch_size), strict=True
    ):
        assert len(batches) == epochs * count
        for epoch in range(epochs):
            own = batches[epoch * count : (epoch + 1) * count]
            assert [len(b) for b in own[:-1]] == [batch_size] * (count - 1)
            assert sorted(i for b in own for i in b) == list(range(size))


@settings(max_examples=60, deadline=None)
@given(sizes=cohorts, batch_size=st.integers(1, 9), steps=st.integers(1, 15))
def test_a_client_sees_the_same_alone_and_among_others(sizes: list[int], batch_size: int, steps: int) -> None:
    together = walk(sizes, [steps] * len(sizes), batch_size)
    for client, size in enumerate(sizes):
        assert walk([size], [steps], batch_size, [client])[0] == together[client]


def test_epochs_and_clients_are_shuffled_differently() -> None:
    first, second = walk([20, 20], [2, 2], 20)
    assert first[0] != first[1]
    assert first[0] != second[0]
    assert first[0] != list(range(20))


def test_calls_are_counted_by_batch_size() -> None:
    """Sizes 7, 5, 5 in batches of 3: steps of (3 3 3), (3 2 2), (1): 1 + 2 + 1 calls for 7 client steps."""
    sizes = torch.tensor([7, 5, 5])
    assert count_calls(sizes, steps_per_epoch_of(sizes, 3), 3) == (4, 7)


@settings(max_examples=60, deadline=None)
@given(sizes=cohorts, batch_size=st.integers(1, 9), epochs=st.integers(1, 3), rows=st.integers(1, 4))
def test_padded_batches_hold_the_same_examples(sizes: list[int], batch_size: int, epochs: int, rows: int) -> None:
    """One batch a step; who is not at work, and what is there twice, has no weight."""
    sizes = sorted(sizes, reverse=True)
    steps = (epochs * steps_per_epoch_of(torch.tensor(sizes), batch_size)).tolist()
    indices = torch.arange(sizes[0]).expand(len(sizes), sizes[0]) + 1000 * torch.arange(len(sizes))[:, None]
    keys = client_keys(torch.arange(len(sizes)), 0, "shuffle")
    arguments = indices, torch.tensor(sizes), torch.tensor(steps), batch_size, keys, keys
    plain = list(LocalSchedule(*arguments))
    padded = list(LocalSchedule(*arguments, padding=Padding(batch_size, rows, torch.float64)))
    assert [plan.step for plan in padded] == list(range(steps[0]))
    for plan in padded:
        weights = plan.weights
        count = len(plan.indices)
        assert plan.rows == slice(0, count)
        assert count == len(sizes) or (count % rows == 0 and count - rows < plan.active <= count)
        assert plan.indices.shape == plan.keys.shape == weights.shape == (count, batch_size)
        working = torch.arange(count) < plan.active
        torch.testing.assert_close(weights.sum(1), working.double(), rtol=0, atol=1e-15)
        for part in (p for p in plain if p.step == plan.step):
            members = torch.arange(len(sizes))[part.rows]
            size = part.indices.shape[1]
            assert torch.equal(plan.indices[members, :size], part.indices)
            assert torch.equal(plan.keys[members, :size], part.keys)
            assert (plan.sizes[members] == size).all()
            assert (weights[members, size:] == 0).all()
            # Padding shows a client nothing but its own examples.
            assert (plan.indices[members] // 1000 == members[:, None]).all()
