"""Who takes part."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds import ragged_data, train

from lfl.participation import DoublingParticipation, FixedParticipation, FullParticipation, UniformParticipation
from lfl.system import ExponentialSpeeds


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 50))
def test_uniform_participation_is_distinct_sorted_and_addressed(clients: int, count: int, number: int) -> None:
    count = min(count, clients)
    chosen = UniformParticipation(count).select(number, clients, seed=3)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == count
    assert chosen.min() >= 0
    assert chosen.max() < clients
    assert torch.equal(chosen, UniformParticipation(count).select(number, clients, seed=3))


def test_uniform_participation_is_uniform() -> None:
    """Each of 20 clients is drawn in a round with probability 1/4; 4000 rounds, 5 standard errors."""
    counts = torch.zeros(20)
    for number in range(4000):
        counts[UniformParticipation(0.25).select(number, 20, 0)] += 1
    assert ((counts / 4000 - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 4000)).all()


@pytest.mark.parametrize("count", [0, -3, 0.0, 1.5, -0.1])
def test_a_count_or_share_that_cannot_be(count: float) -> None:
    with pytest.raises(ValueError, match=f"`clients_per_round={count}`"):
        UniformParticipation(count)


@pytest.mark.parametrize("rounds", [0, -1, 1.5])
def test_rounds_of_a_draw_that_cannot_be(rounds: int) -> None:
    with pytest.raises(ValueError, match=f"`rounds_per_draw={rounds}` of UniformParticipation must be a whole number"):
        UniformParticipation(2, rounds_per_draw=rounds)


def test_participation_checks_the_number_of_clients() -> None:
    with pytest.raises(ValueError, match="`clients_per_round=11` but the data module has 10 clients"):
        UniformParticipation(11).check(10)
    with pytest.raises(ValueError, match=r"names clients \[10\], but the ids are 0 to 9"):
        FixedParticipation([[1], [10]]).check(10)
    with pytest.raises(ValueError, match="twice in round 2"):
        FixedParticipation([[1], [3, 3]])
    with pytest.raises(ValueError, match="no round empty"):
        FixedParticipation([[1], []])
    assert FixedParticipation([[2, 1], [0]]).select(3, 3, 0).tolist() == [1, 2]
    assert FullParticipation().select(1, 3, 0).tolist() == [0, 1, 2]


def test_participants_are_the_fastest_and_the_clock_is_theirs(tmp_path: Path) -> None:
    system = ExponentialSpeeds(dynamic=True, communication=0.25)
    participation = DoublingParticipation(clients_per_round=6, initial=1, rounds_per_stage=2)
    participation.system = system
    expected = 0.0
    for number in range(1, 8):
        chosen = participation.select(number, 20, seed=3)
        invited = participation.invited(chosen, number, 20, seed=3)
        seconds = {int(i): float(system.compute_seconds(i[None], number, 3)) for i in invited}
        count = min(2 ** ((number - 1) // 2), 6)
        assert len(invited) == 6
        assert sorted(sorted(seconds, key=seconds.__getitem__)[:count]) == chosen.tolist()
        expected += max(seconds[i] for i in chosen.tolist()) + 0.25
    trainer = train(
        [], tmp_path, data=ragged_data(20), participation=participation, system=system, max_rounds=7, seed=3
    )
    assert trainer.run.progress.simulated_seconds["time"] == pytest.approx(expected, rel=1e-12)
    assert trainer.summary.last("sim/time")[0] == trainer.run.progress.simulated_seconds["time"]


def test_stages_of_given_lengths() -> None:
    participation = DoublingParticipation(1.0, initial=2, rounds_per_stage=[0, 3, 1])
    assert [participation.stage(number) for number in range(1, 7)] == [1, 1, 1, 2, 2, 2]
