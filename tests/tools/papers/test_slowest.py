"""The evaluation of the slowest clients."""

from pathlib import Path
from typing import Any

import pytest
from worlds import equal_data, mlp, train

from lfl.callbacks import ClientEvaluation, FederatedCallback
from lfl.round import Round
from lfl.system import FixedTimes
from tools.papers.slowest import SlowestClients


class Metrics(FederatedCallback):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def on_round_end(self, round: Round) -> None:
        self.found.update(round.metrics)


def test_the_slowest_are_evaluated_beside_all_clients(tmp_path: Path) -> None:
    """Of eight clients 2 and 5 take longest; a fifth of eight are two. All have as many test examples."""
    seconds = [1.0, 2.0, 9.0, 3.0, 4.0, 8.0, 5.0, 6.0]
    slowest, watch = SlowestClients(share=0.2, every_n_rounds=1), Metrics()
    stack = [ClientEvaluation(every_n_rounds=1), slowest, watch]
    trainer = train(stack, tmp_path, mlp(), equal_data(), max_rounds=1, system=FixedTimes([seconds]))
    rows = [row.split(",") for row in (Path(trainer.log_dir) / "clients.csv").read_text().splitlines()]
    head, rows = rows[0], rows[1:]
    scope, client, accuracy = (head.index(name) for name in ("scope", "client", "val_acc"))
    chosen = {int(row[client]): float(row[accuracy]) for row in rows if row[scope] == "slowest"}
    everyone = {int(row[client]): float(row[accuracy]) for row in rows if row[scope] == "personal"}
    assert list(chosen) == [2, 5]
    assert chosen == {client: everyone[client] for client in (2, 5)}
    assert watch.found["slowest/val_acc"] == pytest.approx(sum(chosen.values()) / 2)
    assert watch.found["slowest/clients"] == 2


def test_there_must_be_speeds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"SlowestClients needs a `trainer\.system`"):
        train([SlowestClients()], tmp_path, mlp(), equal_data(), max_rounds=1)
