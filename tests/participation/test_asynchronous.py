"""Clients that nobody waits for, as a participation."""

from pathlib import Path

import pytest
import torch
from worlds import even_data, train

from lfl.callbacks import SystemPictures, TopK
from lfl.participation import AsynchronousParticipation
from lfl.system import EqualSpeeds, ExponentialSpeeds, Links, Unreliable
from lfl.trainer import FederatedTrainer

NONE = torch.empty(0)


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
            (seconds,) = participation.seconds(number, 20, seed, NONE, NONE).values()
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


def test_other_bits_than_expected_are_warned_of_once(tmp_path: Path) -> None:
    """Top-k sends a tenth of what the events have taken for the upload; with ``expected_up`` they agree."""

    def run(**links: float) -> FederatedTrainer:
        participation = AsynchronousParticipation(4, 4)
        options = {"system": Links(up=1e5, **links), "participation": participation, "max_rounds": 3}
        return train([TopK(0.1)], tmp_path, data=even_data(5), **options)

    with pytest.warns(UserWarning, match=r"expected .* s for what takes .* s: set `expected_up` of the links") as said:
        wrong = run()
    assert len([warning for warning in said if "expected_up" in str(warning.message)]) == 1
    (sent,) = {wrong.callback_metrics["comm/up_bytes"].item()}
    right = run(expected_up=8 * sent / 4)
    assert right.callback_metrics["sim/time"] == pytest.approx(3 * 8 * sent / 4 / 1e5)


def test_pictures_of_rounds_are_refused(tmp_path: Path) -> None:
    options = {"system": EqualSpeeds(), "participation": AsynchronousParticipation(3, 2)}
    with pytest.raises(ValueError, match="SystemPictures and AsynchronousParticipation have no meaning together"):
        train([SystemPictures()], tmp_path, data=even_data(5), **options)
