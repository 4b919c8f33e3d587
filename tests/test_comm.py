"""The ledger: totals, increments, its state."""

from pathlib import Path

import pytest
import torch
from worlds import mlp, train

from lfl.callbacks import Scaffold
from lfl.comm import Ledger, Message, Outbox, Sent

# MLP 64-12-4: D = 64*12 + 12 + 12*4 + 4 = 832. Rank 0.25 of the rows: 3*64 + 12 + 1*12 + 4 = 220.
D, R = 832, 220


def test_totals_add_up_and_are_in_the_csv(tmp_path: Path) -> None:
    from lfl.loggers import read_rows

    trainer = train([Scaffold()], tmp_path, mlp(), precision="32-true")
    rows = [metrics for _, metrics in read_rows(Path(trainer.log_dir) / "metrics.csv")]
    assert [row["comm/up_bytes"] for row in rows] == [5 * 2 * D * 4] * 3
    assert rows[-1]["comm/total_up_bytes"] == 3 * 5 * 2 * D * 4
    assert rows[-1]["comm/total_down_bytes"] == sum(row["comm/down_bytes"] for row in rows)


def test_what_was_sent_is_kept_as_long_as_somebody_is_at_work_on_it() -> None:
    """After round 1 somebody is at work on what it sent, after 2 on what 1 and 2 sent, after 3 on that of 1 again."""
    outbox, x = Outbox(torch.device("cpu")), torch.zeros(2)
    for number, awaited in ((1, [1]), (2, [1, 2]), (3, [1])):
        outbox.keep(number, Sent(x, {"model": x, "control": x[:1]}), awaited)
        assert [saved["number"] for saved in outbox.state_dict()["rounds"]] == awaited
        x += 1  # in place: what is kept is a copy
    assert outbox.of(None) == outbox.of(torch.tensor([3])) == {}
    again = Outbox(torch.device("cpu"))
    again.load_state_dict(outbox.state_dict())
    for found in (outbox.of(torch.tensor([4, 1])), again.of(torch.tensor([1]))):
        assert list(found) == [1]
        assert found[1].server.tolist() == [0.0, 0.0]
        assert {name: value.tolist() for name, value in found[1].contents.items()} == {"model": [0, 0], "control": [0]}
    again.keep(4, Sent(x, {}), [])
    assert again.state_dict() == {"rounds": []}


def test_two_payloads_of_one_name_are_refused() -> None:
    message = Message()
    message.add("control", torch.zeros(3))
    with pytest.raises(ValueError, match="Two callbacks send a payload named 'control'"):
        message.add("control", torch.zeros(3))


def test_downloads_of_each_client_are_all_payloads_together() -> None:
    ledger, message = Ledger(3), Message()
    message.add("model", torch.zeros(10))
    message.add("control", torch.zeros(4))
    message.charge("control", torch.tensor([1, 7]))
    ledger.start_round()
    ledger.download(message, torch.tensor([0, 2]), 1)
    assert ledger.received_bits.tolist() == [320 + 1, 320 + 7]
    assert ledger.down_bits == {"model": 640, "control": 8}


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
        assert each.received_bits.tolist() == [2 * 32, 320]
        found = each.state_dict()["last_round"]
        assert dict(zip(found["clients"].tolist(), found["rounds"].tolist(), strict=True)) == {0: 3, 1: 2, 2: 2, 3: 3}


def test_the_ledgers_state_is_about_clients_that_were_seen() -> None:
    ledger, message = Ledger(1_000_000), Message()
    message.add("model", torch.zeros(10))
    for number, clients in ((1, [7, 999_999]), (2, [7])):
        ledger.download(message, torch.tensor(clients), number)
    saved = ledger.state_dict()["last_round"]
    assert {name: values.tolist() for name, values in saved.items()} == {"clients": [7, 999_999], "rounds": [2, 1]}
