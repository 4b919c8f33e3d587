"""The first that answer: who they are, how many, and when they are drawn anew."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import HEAD, Rounds, images, ragged_data, train

from lfl.callbacks import PersonalParameters
from lfl.data import DatasetSource, FederatedDataModule
from lfl.participation import DoublingParticipation, FastestParticipation, UniformParticipation
from lfl.system import ExponentialSpeeds, FixedTimes, TimeSharing

SPEEDS = ExponentialSpeeds(dynamic=True)


def fastest(ids: Any, count: int, number: int, seed: int) -> list[int]:
    """The ``count`` smallest times, by hand."""
    seconds = {int(i): float(SPEEDS.compute_seconds(i[None], number, seed)) for i in ids}
    return sorted(sorted(seconds, key=seconds.__getitem__)[:count])


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


def test_the_first_k_of_those_who_are_sampled() -> None:
    participation = FastestParticipation(3, clients_per_round=8, rounds_per_draw=2)
    participation.system = SPEEDS
    participation.check(20)
    for number in range(1, 6):
        sampled = UniformParticipation(8).select(1 + (number - 1) // 2, 20, 5)
        chosen = participation.select(number, 20, 5)
        assert participation.invited(chosen, number, 20, 5).tolist() == sampled.tolist()
        assert chosen.tolist() == fastest(sampled, 3, number, 5)
    assert participation.count(20) is None


def test_clients_without_data_are_not_counted(tmp_path: Path) -> None:
    """The two fastest have no examples: n = 2 and 4 are of those that have some."""
    sizes = torch.tensor([0, 4, 0, 5, 6, 7])
    for participation, expected in (
        (FastestParticipation(2), [[1, 3], [1, 3]]),
        (DoublingParticipation(initial=2, rounds_per_stage=1), [[1, 3], [1, 3, 4, 5]]),
    ):
        participation.system = FixedTimes([[1.0, 3.0, 2.0, 4.0, 5.0, 6.0]])
        participation.client_sizes = sizes
        assert [participation.select(number, 6, 0).tolist() for number in (1, 2)] == expected
    kept, path = Rounds(), tmp_path / "partition.json"
    path.write_text(
        '{"train": {"0": [], "1": [0, 1], "2": [], "3": [2, 3]}, "test": {"0": [], "1": [0], "2": [], "3": []}}'
    )
    data = FederatedDataModule(
        source=DatasetSource(images(), images(40, seed=1), num_classes=4), num_clients=4, partition_path=str(path)
    )
    times = FixedTimes([[1.0, 3.0, 2.0, 4.0]])
    train([kept], tmp_path, data=data, participation=FastestParticipation(1), system=times, max_rounds=1)
    assert kept.kept[0].clients.tolist() == [1]
    assert kept.kept[0].invited.tolist() == [1, 3]


def test_n_doubles_and_the_sample_stays_for_a_round_or_a_stage() -> None:
    """n_0 = 2, N = 9, two rounds a stage: 2, 2, 4, 4, 8, 8, 9; the n smallest T_i of the sampled in every round."""
    for resample in ("round", "stage"):
        participation = DoublingParticipation(9, initial=2, rounds_per_stage=2, resample=resample)
        participation.system = SPEEDS
        for number, n in zip(range(1, 8), (2, 2, 4, 4, 8, 8, 9), strict=True):
            draw = number if resample == "round" else 1 + (number - 1) // 2
            sampled = UniformParticipation(9).select(draw, 30, 1)
            chosen = participation.select(number, 30, 1)
            assert participation.invited(chosen, number, 30, 1).tolist() == sampled.tolist()
            assert chosen.tolist() == fastest(sampled, n, number, 1)


def test_examples_double() -> None:
    """Sizes by speed 5, 1, 3, 2, 20, 4, n_0 = 2: at least 6, 12, 24, 48 of sums 5, 6, 9, 11, 31, 35."""
    participation = DoublingParticipation(initial=2, rounds_per_stage=1, doubles="examples")
    participation.system = FixedTimes([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    participation.client_sizes = torch.tensor([5, 1, 3, 2, 20, 4])
    assert [len(participation.select(number, 6, 0)) for number in (1, 2, 3, 4, 200)] == [2, 5, 5, 6, 6]
    participation.client_sizes = torch.ones(6).long()
    assert [len(participation.select(number, 6, 0)) for number in (1, 2, 3)] == [2, 4, 6]  # as clients do


def test_the_clock_of_a_stage_is_its_nth_order_statistic() -> None:
    """With N = 100 unit exponentials, n = 10, 20, 40, 80, 100 is expected to take 0.105, 0.222, 0.508, 1.590, 5.187."""
    participation = DoublingParticipation(1.0, initial=10, rounds_per_stage=1)
    participation.system = SPEEDS
    for stage, expected in enumerate((0.105, 0.222, 0.508, 1.590, 5.187)):
        times = []
        for seed in range(100):
            chosen = participation.select(stage + 1, 100, seed)
            times.append(SPEEDS.round_seconds(chosen, torch.zeros(len(chosen)), stage + 1, seed)["time"])
        found = torch.tensor(times)
        assert float(found.mean()) == pytest.approx(expected, abs=4 * float(found.std()) / 100**0.5 + 5e-4)


def test_heads_of_others_are_untouched(tmp_path: Path) -> None:
    system = FixedTimes([[float(i) for i in range(8)]])
    participation = DoublingParticipation(initial=2, rounds_per_stage=1)
    trainer = train([PersonalParameters(HEAD)], tmp_path, participation=participation, system=system, max_rounds=2)
    (slot,) = trainer.run.store.slots
    assert trainer.run.store.has_rows(slot, torch.arange(8)).tolist() == [True] * 4 + [False] * 4


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="`fastest=0` of FastestParticipation must be a whole number of at least 1"):
        FastestParticipation(0)
    with pytest.raises(ValueError, match="`resample=never` of DoublingParticipation must be one of round, stage"):
        DoublingParticipation(resample="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`doubles=bits` of DoublingParticipation must be one of clients, examples"):
        DoublingParticipation(doubles="bits")  # type: ignore[arg-type]
    for system in (None, TimeSharing(1.0)):
        participation = FastestParticipation(3, clients_per_round=4)
        participation.system = system
        with pytest.raises(ValueError, match="FastestParticipation waits for the fastest clients: it needs"):
            participation.check(10)
    participation.system = SPEEDS
    participation.check(10)
    participation.fastest = 5
    with pytest.raises(ValueError, match="`fastest=5` of FastestParticipation, but it samples 4 of 10 clients"):
        participation.check(10)
    assert DoublingParticipation().count(20) is None
