"""Clients that nobody waits for, as a participation."""

import pytest
import torch

from lfl.participation import AsynchronousParticipation
from lfl.system import EqualSpeeds, ExponentialSpeeds, Unreliable


def test_events_are_a_function_of_the_round() -> None:
    """Asked for in any order, and of other objects, they are the same."""

    def of(rounds: list[int], seed: int = 3) -> dict[int, list[list[int]]]:
        participation, found = AsynchronousParticipation(6, 2), {}
        participation.system = ExponentialSpeeds(dynamic=True, communication=0.5)
        participation.client_sizes = (torch.arange(20) != 7).long()
        for number in rounds:
            clients = participation.select(number, 20, seed)
            invited = participation.invited(clients, number, 20, seed)
            sent_in = participation.sent_in(clients, number, 20, seed)
            (seconds,) = participation.seconds(number, 20, seed).values()
            awaited = participation.awaited(number, 20, seed)
            found[number] = [clients.tolist(), invited.tolist(), sent_in.tolist(), [seconds], awaited]
        return found

    forward = of([1, 2, 3, 4, 5])
    assert forward == of([4, 1, 5, 3, 2])
    assert forward != of([1, 2, 3, 4, 5], seed=4)
    assert not any(7 in clients + invited for clients, invited, *_ in forward.values())
    assert min(row[3][0] for row in forward.values()) >= 0
    assert AsynchronousParticipation(6, 2).count(20) == 2


def test_systems_that_lose_clients_are_refused() -> None:
    participation = AsynchronousParticipation(2)
    participation.system = Unreliable(EqualSpeeds(), deadline=1.0)
    with pytest.raises(ValueError, match="AsynchronousParticipation and Unreliable have no meaning together"):
        participation.check(5)
