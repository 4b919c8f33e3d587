"""The way down through a codec: rounds by hand, what is kept, and what is charged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.empty import Sometimes
from two_clients import path_of
from worlds import HEAD, Bystander, head_of, mlp, train

from lfl.callbacks import FLSS, QSGD, SSF, STC, Downlink, PersonalParameters, Sign, TopK
from lfl.participation import FixedParticipation

WHOLE = 832 * 64  # MLP 64-12-4 in doubles
SHORT = 100 * (64 + 10)  # 100 of its entries


def test_top_k_down_by_hand(tmp_path: Path) -> None:
    """Clients move by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); k = 1.

    1. Mean (1, 1): a tie, (1, 0) is sent, E = (0, 1), x = (1, 0).
    2. Mean (.75, 1), a = (.75, 2): (0, 2), E = (.75, 0), x = (1, 2).
    3. Mean (.75, -.5), a = (1.5, -.5): (1.5, 0), E = (0, -.5), x = (2.5, 2).

    Down two doubles, then a double and one bit of an index.
    """
    path, trainer = path_of([Downlink(TopK(1))], tmp_path, rounds=3)
    assert path == [[1.0, 0.0], [1.0, 2.0], [2.5, 2.0]]
    assert trainer.stack[0].residual.tolist() == [0.0, -0.5]
    assert trainer.ledger.totals["down"] == 2 * 128 + 2 * 2 * 65


class Wanted(Bystander):
    """Stands before ``Downlink``: the sum of the server's steps as its optimizer takes them."""

    def __init__(self) -> None:
        self.total: Any = 0.0

    def on_server_step(self, round: Any) -> None:
        self.total = self.total + self.run.server.vector - round.server


@pytest.mark.parametrize("codec", [TopK(0.05), TopK(0.1, scope="tensor"), Sign(), Sign(scope="tensor")])
def test_what_was_sent_and_what_is_kept_is_what_the_server_wanted(codec: Any, tmp_path: Path) -> None:
    wanted, down = Wanted(), Downlink(codec)
    momentum = {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.5)}
    start = train([], tmp_path, max_rounds=0).server.vector
    trainer = train([wanted, down], tmp_path, max_rounds=4, **momentum)
    assert down.residual.norm() > 1e-2
    assert trainer.store.slots == ()
    torch.testing.assert_close(trainer.server.vector - start + down.residual, wanted.total, rtol=0, atol=1e-12)


class Even(Bystander):
    """Sets the aggregate to one number, far smaller than the rounding of x leaves exact."""

    observes = False

    def on_aggregate(self, round: Any) -> None:
        round.update = torch.full_like(round.update, 1e-12)


@pytest.mark.parametrize("codec", [lambda: Downlink(TopK(0.1)), lambda: STC(0.1)])
def test_entries_of_one_magnitude_are_equal_whatever_x_is(codec: Any, tmp_path: Path) -> None:
    start = train([], tmp_path, max_rounds=0).server.vector
    moved = train([Even(), codec()], tmp_path, max_rounds=1).server.vector - start
    assert moved.nonzero().squeeze(1).tolist() == list(range(84))  # the first of 832


def test_everything_is_fedavg(tmp_path: Path) -> None:
    plain, whole = (train(stack, tmp_path).server.vector for stack in ([], [Downlink(TopK(1.0))]))
    torch.testing.assert_close(whole, plain, rtol=0, atol=1e-12)


def test_levels_down_keep_nothing_and_are_drawn_by_round(tmp_path: Path) -> None:
    down = Downlink(QSGD(2, coding="fixed"))
    trainer = train([down], tmp_path, max_rounds=2, participation=FixedParticipation([[0, 1]]))
    assert down.residual.numel() == 0
    assert trainer.ledger.down_bits == {"model": 2 * (64 + 832 * 3)}


def test_absent_clients_are_charged_what_they_missed(tmp_path: Path) -> None:
    """Client 1 was last here in round 1: it lacks the steps of rounds 1, 2, 3; of eight, the whole model is less."""

    def down_bits(absences: int) -> int:
        schedule = FixedParticipation([[0, 1], *[[0]] * absences, [0, 1]])
        options = {"participation": schedule, "max_rounds": absences + 2}
        return train([Downlink(TopK(100))], tmp_path, mlp(), **options).ledger.down_bits["model"]

    assert down_bits(2) == SHORT + 3 * SHORT
    assert down_bits(7) == SHORT + WHOLE


def test_a_round_without_updates_sends_nothing(tmp_path: Path) -> None:
    schedule = Sometimes(FixedParticipation([[0]]), nobody=[2])
    trainer = train([TopK(10), Downlink(TopK(100))], tmp_path, mlp(), participation=schedule)
    assert trainer.ledger.down_bits == {"model": SHORT}


def test_personal_parameters_are_no_part_of_it(tmp_path: Path) -> None:
    """Signs of the 780 others, and a scale; the head, 52 numbers, stays as it was at the server."""
    start = train([], tmp_path, max_rounds=0)
    trainer = train([PersonalParameters(HEAD), Downlink(Sign())], tmp_path, participation=FixedParticipation([[0, 1]]))
    head = head_of(trainer)
    assert trainer.ledger.down_bits == {"model": 2 * (780 + 64)}
    assert torch.equal(trainer.server.vector[head], start.server.vector[head])
    assert not torch.equal(trainer.server.vector[~head], start.server.vector[~head])


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`k=\[1, 2\]` of TopK lists a number for each client, but in Downlink"):
        Downlink(TopK([1, 2]))
    with pytest.raises(ValueError, match="`vote=majority` of Sign has no meaning in Downlink"):
        Downlink(Sign(error_feedback=False, vote="majority"))
    for other in (FLSS(1, 2), SSF()):
        with pytest.raises(ValueError, match=f"Downlink and {type(other).__name__} have no meaning together"):
            train([other, Downlink(TopK(0.1))], tmp_path)
    with pytest.raises(ValueError, match="`scope=tensor` of Sign needs updates of all parameters"):
        train([PersonalParameters(HEAD), Downlink(Sign(scope="tensor"))], tmp_path)
