"""Who takes part."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds import Rounds, ragged_data, train

from lfl.participation import (
    DoublingParticipation,
    FixedParticipation,
    FullParticipation,
    HeldOutParticipation,
    PoissonParticipation,
    UniformParticipation,
    VaryingParticipation,
)
from lfl.system import ExponentialSpeeds, FixedTimes


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
