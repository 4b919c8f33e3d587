"""Whose update arrives when, against lists made by hand, and what must hold of any."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lfl.events import Arrivals, EventQueue

TIMES = [2.0, 3.0, 7.0]


def queue(times: list[float], concurrency: int, buffer: int, seed: int = 0) -> EventQueue:
    def seconds(ids: Tensor, dispatch: int) -> Tensor:
        return torch.tensor(times, dtype=torch.float64)[ids]

    return EventQueue(torch.arange(len(times)), concurrency, buffer, seconds, seed)


def listed(events: EventQueue, rounds: int) -> list[tuple[float, list[int], list[int], list[int], list[int]]]:
    """The end of each round, who arrives, from which rounds, who is sent the model, and what is waited for."""
    found = []
    for _ in range(rounds):
        now = events.next_round()
        found.append((events.now, now.clients.tolist(), now.sent_in.tolist(), now.invited.tolist(), now.awaited))
    return found


def test_three_clients_that_are_never_waited_for() -> None:
    """They take 2, 3 and 7 seconds. Whoever arrives is the only one who is idle, and starts again.

    At 6 the clients 1 and 0 arrive at once; 1 was sent the model first. Both are sent that of round 6.
    """
    assert listed(queue(TIMES, concurrency=3, buffer=1), 8) == [
        (2.0, [0], [1], [0, 1, 2], [1]),
        (3.0, [1], [1], [0], [1, 2]),
        (4.0, [0], [2], [1], [1, 3]),
        (6.0, [1], [3], [0], [1, 4]),
        (6.0, [0], [4], [], [1]),
        (7.0, [2], [1], [0, 1], [6]),
        (8.0, [0], [6], [2], [6, 7]),
        (9.0, [1], [6], [0], [7, 8]),
    ]


def test_a_buffer_of_two() -> None:
    """Who waits in the buffer is not idle: here nobody is, so that both are sent the model when the server has stepped.

    Client 2 comes at 7, with the model of round 1.
    """
    assert listed(queue(TIMES, concurrency=3, buffer=2), 4) == [
        (3.0, [0, 1], [1, 1], [0, 1, 2], [1]),
        (6.0, [0, 1], [2, 2], [0, 1], [1]),
        (8.0, [0, 2], [3, 1], [0, 1], [3]),
        (10.0, [0, 1], [4, 3], [0, 2], [4]),
    ]


def test_who_is_idle_is_sent_the_model_at_once() -> None:
    """Two of three at work: when the first of a buffer arrives, the third is sent the model of the same round."""
    events = queue([1.0, 1.5, 1.25], concurrency=2, buffer=2)
    first = events.next_round()
    assert first.invited.tolist() == [0, 1, 2]
    # The one that was not drawn starts at the first arrival, and is still at work.
    assert first.awaited == [1]
    assert first.seconds == max([1.0, 1.5, 1.25][client] for client in first.clients.tolist())


def test_equal_times_and_a_buffer_of_all_are_rounds() -> None:
    everyone = [0, 1, 2, 3]
    found = listed(queue([2.5] * 4, concurrency=4, buffer=4), 3)
    assert found == [(2.5 * t, everyone, [t] * 4, everyone, []) for t in (1, 2, 3)]


@given(st.integers(1, 9), st.data())
def test_what_holds_of_any_events(clients: int, data: st.DataObject) -> None:
    """As many at work as can be; nobody twice; nothing from the future; a round for each ``buffer`` arrivals."""
    times = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 4.0]), min_size=clients, max_size=clients))
    concurrency = data.draw(st.integers(1, clients))
    buffer = data.draw(st.integers(1, concurrency))
    seed = data.draw(st.integers(0, 3))
    events, again = (queue(times, concurrency, buffer, seed) for _ in range(2))
    sent: dict[int, int] = {}
    before = 0.0
    for number in range(1, 12):
        now = events.next_round()
        assert _same(now, again.next_round())
        assert not set(now.invited.tolist()) & sent.keys()
        sent |= dict.fromkeys(now.invited.tolist(), number)
        assert len(sent) <= concurrency + buffer - 1  # those in the buffer, but the last, have been replaced
        assert now.clients.tolist() == sorted(set(now.clients.tolist()))
        assert len(now.clients) == buffer
        assert now.sent_in.tolist() == [sent.pop(client) for client in now.clients.tolist()]
        assert now.awaited == sorted(set(sent.values()))
        assert events.now == before + now.seconds
        before = events.now
        assert len(sent) <= concurrency


def _same(one: Arrivals, other: Arrivals) -> bool:
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True))


def test_idle_clients_are_drawn_uniformly() -> None:
    """One of 5 at work, all equally fast: each follows in a fifth of the cases, itself too; 5 standard errors."""
    events, counts = queue([1.0] * 5, concurrency=1, buffer=1), torch.zeros(5, 5, dtype=torch.float64)
    last = int(events.next_round().clients)
    for _ in range(4000):
        client = int(events.next_round().clients)
        counts[last, client] += 1
        last = client
    shares = counts.sum(dim=0) / 4000
    assert ((shares - 0.2).abs() < 5 * (0.16 / 4000) ** 0.5).all()
    assert (counts > 0).all()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_times_that_cannot_be(seconds: float) -> None:
    with pytest.raises(ValueError, match=rf"client 1 takes {seconds} seconds for the model that it is sent"):
        queue([1.0, seconds], concurrency=2, buffer=1).next_round()
