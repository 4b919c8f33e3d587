"""What clients send, on two clients of the plane whose updates are (2, 0) and (0, 2): encoded, counted, decoded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from two_clients import path_of, two_clients
from worlds import Quadratic, train_quadratic

from lfl.aggregation import CoordinateMedian
from lfl.callbacks import FederatedCallback
from lfl.comm import Payload
from lfl.round import Cohort, Round
from lfl.system import Links
from lfl.trainer import FederatedTrainer


class Times(FederatedCallback):
    """Multiplies updates by a factor on their way, ``bits`` of a client, and keeps what it is given to decode."""

    def __init__(self, factor: float, linear: bool, bits: int = 8) -> None:
        self.factor, self.linear, self.bits = factor, linear, bits  # type: ignore[misc]
        self.encoded: list[list[Any]] = []
        self.given: list[list[Any]] = []

    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        self.encoded.append(payload.values.tolist())
        return Payload(payload.values * self.factor, self.bits)

    def decode(self, round: Round, values: Tensor) -> Tensor:
        self.given.append(values.tolist())
        return values / self.factor


class LastWord(Times):
    """Keeps its payload from the codecs behind it in the second round."""

    def ends_encoding(self, round: Round) -> bool:
        return round.number == 2


class Extra(FederatedCallback):
    """Client i sends (i, 1) beside its update, in 3 bits or 30."""

    def __init__(self) -> None:
        self.received: Tensor | None = None

    def on_cohort_end(self, cohort: Cohort) -> None:
        ids = cohort.ids.double()
        cohort.upload("extra", torch.stack([ids, torch.ones_like(ids)], dim=1), 3 + 27 * cohort.ids)

    def on_aggregate(self, round: Round) -> None:
        self.received = round.received["extra"]


def one_round(stack: list[FederatedCallback], folder: Path, **options: Any) -> FederatedTrainer:
    """One step of both clients from zero."""
    options = {"data": two_clients(), "module": Quadratic(dim=2, lr=0.5), "max_rounds": 1, "local_steps": 1, **options}
    return train_quadratic(stack, folder, **options)[0]


def test_linear_codecs_are_decoded_once_and_others_for_each_client(tmp_path: Path) -> None:
    shared, own, behind = Times(2.0, linear=True), Times(4.0, linear=False), Times(8.0, linear=True)
    trainer = one_round([shared, own, behind], tmp_path, engine="vectorized")
    assert trainer.server.vector.tolist() == [1.0, 1.0]
    # The mean [2] of what was decoded up to there; rows [2, 2] from the first codec on that is not linear.
    assert (shared.encoded, shared.given) == ([[[2.0, 0.0], [0.0, 2.0]]], [[2.0, 2.0]])
    assert (own.encoded, own.given) == ([[[4.0, 0.0], [0.0, 4.0]]], [[[16.0, 0.0], [0.0, 16.0]]])
    assert behind.given == [[[128.0, 0.0], [0.0, 128.0]]]
    assert trainer.ledger.up_bits == {"update": 2 * 8}


def test_an_aggregate_that_is_no_mean_has_all_codecs_decoded_for_each_client(tmp_path: Path) -> None:
    """The median of two is their mean; of rows that are decoded."""
    codec = Times(2.0, linear=True)
    trainer = one_round([codec], tmp_path, aggregator=CoordinateMedian(), engine="vectorized")
    assert codec.given == [[[4.0, 0.0], [0.0, 4.0]]]
    assert trainer.server.vector.tolist() == [1.0, 1.0]


def test_a_codec_keeps_its_payload_from_those_behind_it(tmp_path: Path) -> None:
    first, behind = LastWord(2.0, linear=True, bits=5), Times(4.0, linear=False, bits=7)
    points, trainer = path_of([first, behind], tmp_path, rounds=3)
    assert points == [[1.0, 1.0], [1.75, 1.25], [2.3125, 1.3125]]
    # Once a round, and once for each of two clients in two rounds.
    assert (len(first.given), len(behind.encoded), len(behind.given)) == (3, 4, 4)
    assert trainer.callback_metrics["comm/total_up_bytes"] == 2 * (7 + 5 + 7) / 8


@pytest.mark.parametrize("cohort_size", [1, 2])
def test_what_is_sent_beside_updates_is_added_up_and_counted(tmp_path: Path, cohort_size: int) -> None:
    extra = Extra()
    trainer = one_round([extra], tmp_path, cohort_size=cohort_size)
    assert extra.received is not None
    assert extra.received.tolist() == [1.0, 2.0]
    assert trainer.ledger.up_bits == {"update": 2 * 2 * 64, "extra": 3 + 30}


def test_a_simulated_system_is_told_what_each_client_has_sent(tmp_path: Path) -> None:
    """Update and extra payload over links of 1 bit a second: the second client sends for longer."""
    trainer = one_round([Times(1.0, linear=True, bits=10), Extra()], tmp_path, system=Links(up=1.0), cohort_size=1)
    assert trainer.callback_metrics["sim/time"] == 10 + 30
