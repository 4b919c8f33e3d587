"""Bytes on the wire of every kind of method, against counts made by hand."""

from pathlib import Path

import pytest
import torch
from worlds import mlp, train

from lfl.callbacks import SSF, FedSub, Proximal, Scaffold
from lfl.participation import FixedParticipation
from lfl.subspace import LayerwiseSubspace

# MLP 64-12-4: D = 64*12 + 12 + 12*4 + 4 = 832. Rank 0.25 of the rows: 3*64 + 12 + 1*12 + 4 = 220.
D, R = 832, 220
SCHEDULE = FixedParticipation([[0, 1], [0, 2], [1, 2], [0, 1]])


def floats_per_round(callbacks, tmp_path: Path, **options) -> list[tuple[float, float]]:
    """(down, up) floats of each round, both clients together."""
    found = []
    for rounds in range(1, 5):
        trainer = train(
            callbacks(), tmp_path, mlp(), max_rounds=rounds, participation=SCHEDULE, logger=False, **options
        )
        metrics = trainer.ledger.metrics()
        found.append((metrics["comm/down_bytes"] / 8, metrics["comm/up_bytes"] / 8))
    return found


@pytest.mark.parametrize("callbacks", [list, lambda: [Proximal(0.1)]])
def test_fedavg_and_fedprox_send_the_model_both_ways(callbacks, tmp_path: Path) -> None:
    assert floats_per_round(callbacks, tmp_path) == [(2 * D, 2 * D)] * 4


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_sends_twice_the_model_both_ways(option: str, tmp_path: Path) -> None:
    assert floats_per_round(lambda: [Scaffold(option)], tmp_path) == [(4 * D, 4 * D)] * 4


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_ssf_sends_coordinates_and_what_was_missed(engine: str, tmp_path: Path) -> None:
    """Up R. Down, for x and for c alike: D for a newcomer, else min(missed * R, D).

    Round 1: 0 and 1 new. Round 2: client 0 missed nothing but round 1's result (R), 2 is new. Round 3: client 1 was
    last here in round 1 (2 R), client 2 in round 2 (R). Round 4: client 0 last in 2 (2 R), client 1 last in 3 (R).
    """
    found = floats_per_round(lambda: [SSF(LayerwiseSubspace(0.25))], tmp_path, engine=engine)
    assert found == [(4 * D, 2 * R), (2 * (R + D), 2 * R), (2 * 3 * R, 2 * R), (2 * 3 * R, 2 * R)]


def test_fedsub_sends_coordinates_of_the_model_alone(tmp_path: Path) -> None:
    found = floats_per_round(lambda: [FedSub(LayerwiseSubspace(0.25))], tmp_path)
    assert found == [(2 * D, 2 * R), (R + D, 2 * R), (3 * R, 2 * R), (3 * R, 2 * R)]


def test_a_long_absence_is_charged_the_whole_model_at_most(tmp_path: Path) -> None:
    """Client 1 misses 5 rounds of 220 floats: 1100 > 832."""
    schedule = FixedParticipation([[0, 1], [0], [0], [0], [0], [1]])
    trainer = train([FedSub(LayerwiseSubspace(0.25))], tmp_path, mlp(), max_rounds=6, participation=schedule)
    assert trainer.ledger.down_bits == {"model": D * 64}


def test_server_momentum_cannot_be_followed_from_coordinates(tmp_path: Path) -> None:
    """x then also moves along old directions: the whole model is sent."""

    def sgd(params):
        return torch.optim.SGD(params, lr=1.0, momentum=0.9)

    found = floats_per_round(lambda: [FedSub(LayerwiseSubspace(0.25))], tmp_path, server_optimizer=sgd)
    assert found == [(2 * D, 2 * R)] * 4
