"""Deadlines and dropout: who is lost, what it costs, and what stays as it was."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import HEAD, Bystander, Rounds, head_of, ragged_data, train

from lfl.callbacks import FLSSVRG, PersonalParameters, Scaffold
from lfl.loggers.csv import read_rows
from lfl.participation import FastestParticipation, FixedParticipation, FullParticipation
from lfl.system import ExponentialSpeeds, FixedTimes, TimeSharing, Unreliable

IDS = torch.arange(4)


def lists(answers: Any) -> list[list[int]]:
    return [ids.tolist() for ids in answers]


def test_who_answers_by_hand() -> None:
    """Times 1, 2, 3, 4 and half a second of communication; a deadline of 3.5 is met by three, exactly by the third."""
    system = Unreliable(FixedTimes([[1.0, 2.0, 3.0, 4.0]], communication=0.5), deadline=3.5)
    assert lists(system.answers(IDS, 1, 0)) == [[0, 1, 2], [3], []]
    assert system.round_seconds(IDS[:3], torch.zeros(3), 1, 0, num_lost=1) == {"time": 3.5}
    assert system.round_seconds(IDS[:2], torch.zeros(2), 1, 0) == {"time": 2.5}
    assert system.round_seconds(IDS[:0], torch.zeros(0), 1, 0, num_lost=2) == {"time": 3.5}
    # Whoever drops out is not late.
    both = Unreliable(FixedTimes([[1.0, 2.0, 3.0, 4.0]]), deadline=2.5, dropout=[0.0, 1.0, 0.0, 1.0])
    assert lists(both.answers(IDS, 1, 0)) == [[0], [2], [1, 3]]
    assert both.client_seconds(IDS, None, 1, 0).tolist() == [1.0, math.inf, 3.0, math.inf]
    # Without a deadline the server is told at once.
    told = Unreliable(FixedTimes([[1.0, 2.0, 3.0, 4.0]]), dropout=1.0)
    assert told.round_seconds(IDS[:0], torch.zeros(0), 1, 0, num_lost=4) == {"time": 0.0}
    assert told.round_seconds(IDS[:2], torch.zeros(2), 1, 0, num_lost=2) == {"time": 2.0}


def test_everybody_drops_out_as_often_as_said() -> None:
    """In 2000 rounds, client i with p_i; independently, so that 0 and 1 drop out together with p_0 p_1; 5 errors."""
    chances = torch.tensor([0.1, 0.5, 0.0, 1.0], dtype=torch.float64)
    system = Unreliable(dropout=chances.tolist())
    lost = torch.stack([system.drops_out(IDS, number, 7) for number in range(1, 2001)]).double()
    assert ((lost.mean(dim=0) - chances).abs() <= 5 * (chances * (1 - chances) / 2000).sqrt()).all()
    assert float((lost[:, 0] * lost[:, 1]).mean()) == pytest.approx(0.05, abs=5 * (0.05 * 0.95 / 2000) ** 0.5)
    assert torch.equal(system.drops_out(torch.tensor([1]), 9, 7), system.drops_out(IDS, 9, 7)[1:2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Unreliable(deadline=0), "`deadline=0` of Unreliable must be a number greater than 0."),
        (lambda: Unreliable(deadline=-1.0), "`deadline=-1.0` of Unreliable must be a number greater than 0."),
        (lambda: Unreliable(dropout=1.5), "`dropout=1.5` of Unreliable is a probability and must be at most 1."),
        (lambda: Unreliable(dropout=[-0.1]), "`dropout=-0.1` of Unreliable must be a number of at least 0."),
        (lambda: Unreliable(dropout=[0.1, 0.2]).check(3), "lists 2 probabilities, but there are 3 clients."),
        (lambda: Unreliable(Unreliable(deadline=1.0), dropout=0.1), "`speeds` of Unreliable lose clients themselves"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # compared below
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_lost_clients_are_charged_counted_and_left_alone(tmp_path: Path) -> None:
    """Client 3 is always late, client 1 always drops out: the run is that of 0 and 2 alone, but for their downloads."""
    times = FixedTimes([[1.0, 2.0, 3.0, 4.0]])
    system = Unreliable(times, deadline=3.5, dropout=[0.0, 1.0, 0.0, 0.0])
    data, kept = {"data": ragged_data(4)}, Rounds()
    everybody = train([PersonalParameters(HEAD), Scaffold(), kept], tmp_path, system=system,
                      participation=FullParticipation(), **data)  # fmt: skip
    two = train([PersonalParameters(HEAD), Scaffold()], tmp_path, participation=FixedParticipation([[0, 2]]), **data)
    assert torch.equal(everybody.server.vector, two.server.vector)
    for slot in everybody.run.store.slots:
        for ids, own in ((IDS, everybody), (IDS, two)):
            assert own.run.store.has_rows(slot, ids).tolist() == [True, False, True, False]
        assert torch.equal(*(own.run.store.gather(slot, torch.tensor([0, 2])) for own in (everybody, two)))
    assert int(head_of(everybody).sum()) > 0
    for number, row in read_rows(Path(everybody.log_dir) / "metrics.csv"):
        assert (row["clients"], row["clients_late"], row["clients_dropped"]) == (2.0, 1.0, 1.0)
        assert row["sim/time"] == 3.5 * number
    first = kept.kept[0]
    assert lists((first.clients, first.late, first.dropped, first.invited)) == [[0, 2], [3], [1], [0, 1, 2, 3]]
    assert everybody.ledger.totals["down"] == 2 * two.ledger.totals["down"]
    assert everybody.ledger.totals["up"] == two.ledger.totals["up"]
    assert everybody.ledger.last_round.tolist() == [3, 3, 3, 3]


def test_a_round_that_loses_everybody_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds 1 and 3 are too slow for all: nothing moves, the clock goes to the deadline, and one line says so."""

    class Watch(Bystander):
        def __init__(self) -> None:
            self.moved: list[bool] = []

        def on_round_end(self, round: Any) -> None:
            self.moved.append(not torch.equal(self.run.server.vector, round.server))

    watch = Watch()
    system = Unreliable(FixedTimes([[9.0] * 8, [1.0] * 8]), deadline=2.0)
    trainer = train([watch], tmp_path, system=system, max_rounds=4, enable_progress_bar=True)
    assert watch.moved == [False, True, False, True]
    lines = [line for line in capsys.readouterr().out.splitlines() if "Nobody" in line]
    assert lines == [
        f"Nobody has answered in round {number} (5 late, 0 dropped out): the server's model stays as it is."
        for number in (1, 3)
    ]
    rows = dict(read_rows(Path(trainer.log_dir) / "metrics.csv"))
    assert [rows[number]["sim/time"] for number in (1, 2, 3, 4)] == [2.0, 3.0, 5.0, 6.0]
    assert rows[1]["clients_late"] == 5.0
    assert rows[1]["comm/down_bytes"] > 0 == rows[1]["comm/up_bytes"]


def test_the_fastest_are_those_who_answer(tmp_path: Path) -> None:
    """Where one of the first drops out, the next takes its place, and the round ends with the last answer needed."""
    system = Unreliable(FixedTimes([[1.0, 2.0, 3.0, 4.0]]), deadline=3.5, dropout=[1.0, 0.0, 0.0, 0.0])
    kept = Rounds()
    options: dict[str, Any] = {"data": ragged_data(4), "system": system, "max_rounds": 1}
    two = train([kept], tmp_path, participation=FastestParticipation(2), **options)
    assert kept.kept[0].clients.tolist() == [1, 2]
    assert two.run.progress.simulated_seconds == {"time": 3.0}
    # Of three that are wanted only two are on time: the server waits until the deadline.
    three = train([kept], tmp_path, participation=FastestParticipation(3), **options)
    assert lists((kept.kept[1].clients, kept.kept[1].late)) == [[1, 2], [3]]
    assert three.run.progress.simulated_seconds == {"time": 3.5}


def test_epochs_that_lose_clients_are_refused(tmp_path: Path) -> None:
    system = Unreliable(ExponentialSpeeds(), dropout=0.1)
    with pytest.raises(ValueError, match="FLSSVRG needs the same participants for the `epoch_rounds=2` of an epoch"):
        train([FLSSVRG(20, 30.5, epoch_rounds=2)], tmp_path, system=system)


def test_what_loses_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="Unreliable loses nobody: give it a `deadline`, or a `dropout` above 0"):
        Unreliable()
    with pytest.raises(ValueError, match="`speeds` of Unreliable must know how long each client takes, which TimeSh"):
        Unreliable(TimeSharing(1e5), deadline=1.0)  # type: ignore[arg-type]
