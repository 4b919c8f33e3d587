"""What a round adds up, and what a cohort holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lfl.client.recorder import LoggedSum
from lfl.comm import Sent
from lfl.round import Cohort, CohortPhase, Round, RoundSums

CPU = torch.device("cpu")


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TwoProcesses:
    """Stands in for ``ProcessSums``: the second one that joins gets the sums of both."""

    num_processes = 2

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], Tensor] = {}

    def join(self, sums: dict[tuple[str, str], Tensor]) -> dict[tuple[str, str], Tensor]:
        for name, value in sums.items():
            self.seen[name] = self.seen[name] + value if name in self.seen else value
        return dict(self.seen)


def joined(first: RoundSums, second: RoundSums) -> RoundSums:
    meeting = TwoProcesses()
    first.join(meeting, CPU)  # type: ignore[arg-type]
    return second.join(meeting, CPU)  # type: ignore[arg-type]


def test_means_are_over_examples_and_a_modules_own_loss_wins() -> None:
    sums = RoundSums(losses=double(6, 4), logged={"acc": double(1, 4)})
    assert {name: value.item() for name, value in sums.means().items()} == {"train/loss": 1.5, "acc": 0.25}
    sums.logged["train/loss"] = double(9, 3)
    assert sums.means()["train/loss"] == 3.0
    assert RoundSums().means() == {}


def test_names_that_look_alike_stay_apart() -> None:
    """Kinds of sums have names of their own, whatever callbacks and modules call theirs."""
    first = RoundSums(
        num_reported=2,
        up_bits={"losses": 5},
        losses=double(1, 2),
        own={"losses": double(10), "buffers": double(20), "tokens/count": double(30)},
        logged={"tokens": double(3, 1), "tokens/count": double(4, 1), "losses": double(5, 1)},
        buffers=double(7, 1),
    )
    second = RoundSums(
        num_reported=1, num_refused=1, losses=double(3, 2), own={"losses": double(1)}, counters=double(8)
    )
    found = joined(first, second)
    assert (found.num_reported, found.num_refused, found.num_stopping) == (3, 1, 0)
    assert found.up_bits == {"losses": 5}
    assert found.losses.tolist() == [4.0, 4.0]
    assert {name: value.tolist() for name, value in found.own.items()} == {
        "losses": [11.0],
        "buffers": [20.0],
        "tokens/count": [30.0],
    }
    assert {name: value.tolist() for name, value in found.logged.items()} == {
        "tokens": [3.0, 1.0],
        "tokens/count": [4.0, 1.0],
        "losses": [5.0, 1.0],
    }
    assert found.buffers.tolist() == [7.0, 1.0]
    assert found.counters.tolist() == [8.0]
    assert found.uplink_bits is None


def empty_round() -> Round:
    ids = torch.arange(3)
    return Round(1, ids, torch.tensor([1.0, 2.0]), ids, ids)


def test_callbacks_sums_are_float64() -> None:
    round = empty_round()
    for value in (1.0, 2.0):
        round.accumulate("a", torch.tensor([value]))
    assert round.sums["a"].tolist() == [3.0]
    assert round.sums["a"].dtype == torch.float64
    assert (round.received, round.num_reported, round.num_refused) == ({}, 0, 0)


def three_clients() -> Cohort:
    counts = torch.tensor([3, 2, 1])
    cohort = Cohort(
        round=empty_round(),
        ids=torch.tensor([5, 1, 8]),
        num_examples=counts * 10,
        num_steps=counts,
        values=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        buffers=torch.arange(3.0)[:, None],
        rows={"c": torch.arange(3)},
        loss_rows={"d": torch.arange(3) * 2},
        losses=LoggedSum(double(1, 2, 3), np.ones(3)),
        metrics={"acc": LoggedSum(double(4, 5, 6), np.ones(3))},
        counters=[torch.tensor([7, 8, 9])],
    )
    cohort.phases = [CohortPhase(0, FixedRate(), counts, None)]  # type: ignore[arg-type]
    return cohort


class FixedRate:
    """An optimizer that moves by a tenth of the gradient at each step."""

    def movement_scales(self, num_steps: list[int], pull: float = 0.0) -> list[float]:
        return [0.1 * count for count in num_steps]


def test_a_dropped_client_leaves_every_row() -> None:
    cohort = three_clients()
    cohort.keep(torch.tensor([True, False, True]))
    assert (len(cohort), cohort.active) == (2, 2)
    assert cohort.ids.tolist() == [5, 8]
    assert cohort.num_examples.tolist() == [30, 10]
    assert cohort.num_steps.tolist() == cohort.phases[0].num_steps.tolist() == [3, 1]
    assert cohort.delta.tolist() == [[0.0, 0.0], [4.0, 4.0]]
    assert cohort.params.tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert cohort.buffers.tolist() == [[0.0], [2.0]]
    assert (cohort.rows["c"].tolist(), cohort.loss_rows["d"].tolist()) == ([0, 2], [0, 4])
    assert cohort.losses.sum().tolist() == [4.0, 2.0]
    assert cohort.metrics["acc"].sum().tolist() == [10.0, 2.0]
    assert cohort.counters[0].tolist() == [7, 9]


def test_the_scale_of_a_movement_adds_up_over_phases() -> None:
    """All parameters in the first phase, the second of them in another: 0.1 and 0.2 a step; what none trains is inf."""
    cohort = three_clients()
    torch.testing.assert_close(cohort.step_scale(), torch.tensor([[0.3], [0.2], [0.1]]))
    (first,) = cohort.phases
    second = CohortPhase(1, FixedRate(), torch.tensor([1, 1, 1]), torch.tensor([0.0, 1.0]))  # type: ignore[arg-type]
    cohort.phases = [first, second]
    torch.testing.assert_close(cohort.step_scale(), torch.tensor([[0.3, 0.4], [0.2, 0.3], [0.1, 0.2]]))
    cohort.phases = [second]
    torch.testing.assert_close(cohort.step_scale(), torch.tensor([[math.inf, 0.1]] * 3))


def test_what_clients_know_is_what_the_message_holds() -> None:
    cohort = three_clients()
    cohort.round.message.add("model", cohort.round.server)
    cohort.round.message.derive("basis", torch.ones(1))
    assert set(cohort.received) == {"model", "basis"}
    cohort.upload("extra", torch.ones(3, 1))
    assert list(cohort.uploads) == ["extra"]
    assert cohort.upload_bits == {}
    cohort.upload("rarely", torch.ones(3, 1), bits=torch.tensor([64, 0, 0]))
    assert cohort.upload_bits["rarely"].tolist() == [64, 0, 0]


def test_late_clients_know_what_they_were_sent() -> None:
    """In round 7 clients 5, 1 and 8, of which 1 was sent x now, and the others that of round 4."""
    cohort = three_clients()
    x = torch.tensor([1.0, 2.0])
    assert (cohort.start.tolist(), cohort.anchor.tolist(), cohort.staleness.tolist()) == ([[1, 2]] * 3, [1, 2], [0] * 3)
    older = torch.tensor([-1.0, 0.0])
    clients, everyone = torch.tensor([1, 5, 8]), torch.tensor([1, 2, 5, 8])
    late = Round(7, clients, x, clients, everyone, sent_in=torch.tensor([7, 4, 4]))
    late.earlier = {4: Sent(older, {"model": older, "control": -x})}
    late.message.add("model", x)
    mixed = replace(cohort, round=late)
    assert mixed.staleness.tolist() == [3, 0, 3]
    assert mixed.start.tolist() == [[-1.0, 0.0], [1.0, 2.0], [-1.0, 0.0]]
    assert mixed.delta.tolist() == [[2.0, 2.0], [2.0, 2.0], [6.0, 6.0]]
    mixed.keep(torch.tensor([False, True, True]))
    assert mixed.start.tolist() == [[1.0, 2.0], [-1.0, 0.0]]
    mixed.keep(torch.tensor([False, True]))
    assert (mixed.start.tolist(), mixed.anchor.tolist()) == ([[-1.0, 0.0]], [-1.0, 0.0])
    assert mixed.received["control"].tolist() == [-1.0, -2.0]


def test_what_mixed_clients_were_sent_of_x_is_rows() -> None:
    older = torch.tensor([-1.0])
    clients = torch.tensor([1, 5, 8])
    late = Round(7, clients, torch.ones(1), clients, clients, sent_in=torch.tensor([7, 4, 4]))
    late.message.add("model", late.server)
    late.earlier = {4: Sent(older, {"model": older})}
    counts = torch.ones(3, dtype=torch.int64)
    mixed = Cohort(late, torch.tensor([8, 1, 5]), counts, counts, torch.zeros(3, 1), torch.zeros(3, 0))
    assert mixed.received["model"].tolist() == [[-1.0], [1.0], [-1.0]]


def test_sums_over_nobody_are_zero_and_unknown_names_are_said() -> None:
    round = Round(3, torch.tensor([1]), torch.zeros(2), torch.tensor([1]), torch.tensor([1]))
    for sums in (round.sums, round.received):
        assert sums["a"].item() == 0.0
        assert sums["a"].dtype == torch.float64
        assert "a" not in sums
    round.accumulate("a", torch.tensor(2.0))
    round.totals.num_reported = 1
    assert round.sums["a"].item() == 2.0
    with pytest.raises(
        KeyError, match=r"Nobody has added up 'b' in round 3; there are: a\. `sums.get\(name, 0\.0\)` is"
    ):
        round.sums["b"]
    assert round.sums.get("b", 0.0) == 0.0
