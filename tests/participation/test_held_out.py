"""Clients that take part in no round."""

import pytest
import torch

from lfl.participation import (
    AsynchronousParticipation,
    DoublingParticipation,
    FixedParticipation,
    FullParticipation,
    HeldOutParticipation,
    UniformParticipation,
)
from lfl.system import FixedTimes


@pytest.mark.parametrize("chosen", [0.25, [1, 6]])
def test_held_out_clients_never_take_part(chosen: float | list[int]) -> None:
    participation = HeldOutParticipation(chosen, UniformParticipation(3))
    participation.check(8)
    held = participation.held_out(8, seed=5)
    assert len(held) == 2
    if isinstance(chosen, list):
        assert held.tolist() == chosen
    drawn = [participation.select(number, 8, 5) for number in range(1, 40)]
    assert {client for ids in drawn for client in ids.tolist()} == set(range(8)) - set(held.tolist())
    for ids in drawn:
        assert len(ids) == participation.count(8) == 3
        assert torch.equal(ids, ids.unique())
    joining = torch.tensor([client for client in range(8) if client not in held.tolist()])
    assert torch.equal(drawn[0], joining[UniformParticipation(3).select(1, 6, 5)])


def test_the_share_that_is_held_out_is_drawn_by_the_seed() -> None:
    participation = HeldOutParticipation(0.3)
    draws = [participation.held_out(100, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert all(len(set(draw)) == 30 and draw == sorted(draw) for draw in draws)
    assert UniformParticipation().held_out(100, 0).tolist() == []


def test_the_fastest_of_those_that_are_not_held_out() -> None:
    """Clients 0 and 2 would be the fastest; of the others it is 4, then 1."""
    times = FixedTimes([[1.0, 5.0, 2.0, 9.0, 4.0]])
    participation = HeldOutParticipation([0, 2], DoublingParticipation(1.0, initial=1, rounds_per_stage=1))
    participation.system = times
    participation.check(5)
    assert [participation.select(number, 5, 0).tolist() for number in (1, 2, 3)] == [[4], [1, 4], [1, 3, 4]]
    assert participation.invited(torch.tensor([4]), 1, 5, 0).tolist() == [1, 3, 4]
    assert participation.system is times
    assert HeldOutParticipation([0], FullParticipation()).holds(3)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (0.01, "holds out 0 of 8 clients: hold out at least one, and not all"),
        ([3, 3], "must name different clients"),
        ([8], "with ids from 0 to 7"),
        (list(range(8)), "holds out 8 of 8"),
    ],
)
def test_held_out_clients_that_cannot_be(chosen: float | list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeldOutParticipation(chosen).check(8)


def test_what_cannot_hold_out() -> None:
    with pytest.raises(ValueError, match="is a share of all clients and must be below 1"):
        HeldOutParticipation(2)
    with pytest.raises(ValueError, match="FixedParticipation names them by their ids"):
        HeldOutParticipation([0], FixedParticipation([[0]]))
    with pytest.raises(ValueError, match="`clients_per_round=8` but the data module has 7 clients"):
        HeldOutParticipation([0], UniformParticipation(8)).check(8)


def test_clients_that_nobody_waits_for_may_be_held_out() -> None:
    """The events are those of a run without them."""
    inner, alone = AsynchronousParticipation(3, 2), AsynchronousParticipation(3, 2)
    participation = HeldOutParticipation([0, 4], inner)
    times = [5.0, 1.0, 2.0, 3.0, 7.0, 4.0]
    participation.system = FixedTimes([times])
    participation.client_sizes = torch.tensor([1, 1, 1, 0, 1, 1])
    alone.system, alone.client_sizes = FixedTimes([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1, 1, 0, 1])
    participation.check(6)
    alone.check(4)
    joining, bits = torch.tensor([1, 2, 3, 5]), (torch.zeros(2), torch.zeros(2))
    assert participation.is_late
    for number in (1, 2, 3):
        clients, expected = participation.select(number, 6, 0), alone.select(number, 4, 0)
        assert torch.equal(clients, joining[expected])
        assert torch.equal(participation.invited(clients, number, 6, 0), joining[alone.invited(expected, number, 4, 0)])
        assert torch.equal(participation.sent_in(clients, number, 6, 0), alone.sent_in(expected, number, 4, 0))
        assert participation.awaited(number, 6, 0) == alone.awaited(number, 4, 0)
        assert participation.seconds(number, 6, 0, *bits) == alone.seconds(number, 4, 0, *bits)
        assert participation.metrics(number, 6, 0) == alone.metrics(number, 4, 0)
