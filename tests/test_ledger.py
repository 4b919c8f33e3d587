"""Bytes on the wire, against counts made by hand."""

from pathlib import Path

import pytest
import torch
from conftest import mlp, train

from lfl.callbacks import SSF, FedSub, Proximal, Scaffold
from lfl.comm import Ledger, Message
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


def test_totals_add_up_and_are_in_the_csv(tmp_path: Path) -> None:
    from lfl.loggers import read_rows

    trainer = train([Scaffold()], tmp_path, mlp(), precision="32-true")
    rows = [metrics for _, metrics in read_rows(Path(trainer.log_dir) / "metrics.csv")]
    assert [row["comm/up_bytes"] for row in rows] == [5 * 2 * D * 4] * 3
    assert rows[-1]["comm/total_up_bytes"] == 3 * 5 * 2 * D * 4
    assert rows[-1]["comm/total_down_bytes"] == sum(row["comm/down_bytes"] for row in rows)


def test_two_payloads_of_one_name_are_refused() -> None:
    message = Message()
    message.add("control", torch.zeros(3))
    with pytest.raises(ValueError, match="Two callbacks send a payload named 'control'"):
        message.add("control", torch.zeros(3))


def test_a_skipped_increment_is_refused() -> None:
    ledger = Ledger(3)
    ledger.record_increment("model", 10, 1)
    with pytest.raises(ValueError, match="every round"):
        ledger.record_increment("model", 10, 3)


def test_the_ledgers_state_is_complete() -> None:
    ledger, message = Ledger(4), Message()
    message.add("model", torch.zeros(10))
    for number, clients in ((1, [0, 1]), (2, [1, 2])):
        ledger.start_round()
        ledger.download(message, torch.tensor(clients), number)
        ledger.close_round({"update": 64})
        ledger.record_increment("model", 32, number)
    copy = Ledger(4)
    copy.load_state_dict(ledger.state_dict())
    for each in (ledger, copy):
        each.start_round()
        each.download(message, torch.tensor([0, 3]), 3)
        each.close_round({})
        assert each.metrics() == ledger.metrics()
        assert each.down_bits == {"model": 2 * 32 + 320}
        found = each.state_dict()["last_round"]
        assert dict(zip(found["clients"].tolist(), found["rounds"].tolist(), strict=True)) == {0: 3, 1: 2, 2: 2, 3: 3}


def test_the_ledgers_state_is_about_clients_that_were_seen() -> None:
    ledger, message = Ledger(1_000_000), Message()
    message.add("model", torch.zeros(10))
    for number, clients in ((1, [7, 999_999]), (2, [7])):
        ledger.download(message, torch.tensor(clients), number)
    saved = ledger.state_dict()["last_round"]
    assert {name: values.tolist() for name, values in saved.items()} == {"clients": [7, 999_999], "rounds": [2, 1]}
