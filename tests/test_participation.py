"""Who takes part."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds import Rounds, ragged_data, train

from lfl.participation import (
    AsynchronousParticipation,
    DoublingParticipation,
    FixedParticipation,
    FullParticipation,
    PoissonParticipation,
    UniformParticipation,
    VaryingParticipation,
)
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


def test_poisson_participation_tosses_a_coin_for_each_client() -> None:
    """Of 40 clients with q = 0.1: each takes part in a tenth of 4000 rounds, and two at once in a hundredth.

    The number of participants has mean 4 and variance 3.6, and is zero in 0.9^40 = 1.5 % of the rounds. 5 standard
    errors.
    """
    participation, rounds = PoissonParticipation(0.1), 4000
    taken = torch.zeros(rounds, 40, dtype=torch.float64)
    for number in range(1, rounds + 1):
        chosen = participation.select(number, 40, seed=1)
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert torch.equal(chosen, participation.select(number, 40, seed=1))
        taken[number - 1, chosen] = 1
    assert ((taken.mean(dim=0) - 0.1).abs() < 5 * math.sqrt(0.09 / rounds)).all()
    together = (taken.T @ taken / rounds)[torch.ones(40, 40).triu(1).bool()]
    assert ((together - 0.01).abs() < 5 * math.sqrt(0.0099 / rounds)).all()
    counts = taken.sum(dim=1)
    assert abs(counts.mean() - 4) < 5 * math.sqrt(3.6 / rounds)
    assert abs(counts.var() - 3.6) < 5 * 3.6 * math.sqrt(2.3 / rounds)
    assert abs((counts == 0).double().mean() - 0.9**40) < 5 * math.sqrt(0.015 / rounds)
    assert PoissonParticipation(1.0).select(3, 5, 0).tolist() == [0, 1, 2, 3, 4]


def test_a_varying_number_is_uniform_between_its_bounds(tmp_path: Path) -> None:
    """3 to 6 of 20 clients: each number in a quarter of 4000 rounds, each client in 4.5 / 20; 5 standard errors."""
    participation, rounds = VaryingParticipation(3, 6), 4000
    taken = torch.zeros(rounds, 20, dtype=torch.float64)
    for number in range(1, rounds + 1):
        chosen = participation.select(number, 20, seed=1)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert torch.equal(chosen, participation.select(number, 20, seed=1))
        taken[number - 1, chosen] = 1
    sizes = taken.sum(dim=1).long().bincount()
    assert sizes[:3].sum() == 0
    assert len(sizes) == 7
    assert ((sizes[3:] / rounds - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / rounds)).all()
    assert ((taken.mean(dim=0) - 0.225).abs() < 5 * math.sqrt(0.225 * 0.775 / rounds)).all()
    assert {len(VaryingParticipation(19).select(number, 20, 0)) for number in range(1, 20)} == {19, 20}
    assert [VaryingParticipation(least, most).count(20) for least, most in ((3, 6), (4, 4), (20, None))] == [
        None,
        4,
        20,
    ]
    rounds_of = Rounds()
    train([rounds_of], tmp_path, participation=VaryingParticipation(2), max_rounds=3)
    expected = [len(VaryingParticipation(2).select(number, 8, 0)) for number in (1, 2, 3)]
    assert [round.num_reported for round in rounds_of.kept] == expected


def test_events_are_a_function_of_the_round() -> None:
    """Asked for in any order, and of other objects, they are the same."""

    def of(rounds: list[int], seed: int = 3) -> dict[int, list[list[int]]]:
        participation, found = AsynchronousParticipation(6, 2), {}
        participation.system = ExponentialSpeeds(dynamic=True, communication=0.5)
        participation.has_data = torch.arange(20) != 7
        for number in rounds:
            clients = participation.select(number, 20, seed)
            invited = participation.invited(clients, number, 20, seed)
            sent_in = participation.sent_in(clients, number, 20, seed)
            (seconds,) = participation.seconds(clients, torch.zeros(2), number, 20, seed).values()
            awaited = participation.awaited(number, 20, seed)
            found[number] = [clients.tolist(), invited.tolist(), sent_in.tolist(), [seconds], awaited]
        return found

    forward = of([1, 2, 3, 4, 5])
    assert forward == of([4, 1, 5, 3, 2])
    assert forward != of([1, 2, 3, 4, 5], seed=4)
    assert not any(7 in clients + invited for clients, invited, *_ in forward.values())
    assert min(row[3][0] for row in forward.values()) >= 0
    assert AsynchronousParticipation(6, 2).count(20) == 2


def test_bounds_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="`least=0` of VaryingParticipation must be"):
        VaryingParticipation(0)
    with pytest.raises(ValueError, match="`most=4` of VaryingParticipation must be a whole number of at least 5"):
        VaryingParticipation(5, 4)
    with pytest.raises(ValueError, match="`least=21` of VaryingParticipation, but the data module has 20 clients"):
        VaryingParticipation(21).check(20)
    with pytest.raises(ValueError, match="`most=21` of VaryingParticipation, but the data module has 20 clients"):
        VaryingParticipation(3, 21).check(20)
    VaryingParticipation(20).check(20)


@pytest.mark.parametrize("probability", [0.0, -0.5, 1.01, float("nan")])
def test_probabilities_that_cannot_be(probability: float) -> None:
    with pytest.raises(ValueError, match=f"`probability={probability}` of PoissonParticipation must be"):
        PoissonParticipation(probability)


def test_the_number_of_participants_is_told_where_it_never_changes() -> None:
    assert UniformParticipation(7).count(20) == UniformParticipation(0.35).count(20) == 7
    assert UniformParticipation().count(4) == 4
    assert FullParticipation().count(20) == 20
    assert FixedParticipation([[1, 4], [2, 3]]).count(20) == 2
    for participation in (PoissonParticipation(0.5), FixedParticipation([[1], [2, 3]]), DoublingParticipation()):
        assert participation.count(20) is None


def test_rounds_in_which_no_coin_falls_on_heads(tmp_path: Path) -> None:
    participation = PoissonParticipation(0.05)
    counts = [len(participation.select(number, 8, seed=0)) for number in range(1, 7)]
    assert 0 in counts
    assert max(counts) > 0
    found = train([], tmp_path, participation=participation, max_rounds=6)
    assert found.current_round == 6
    assert bool(torch.isfinite(found.server.vector).all())
