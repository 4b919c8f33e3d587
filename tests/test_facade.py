"""What a module and a user of a finished run may ask of the trainer."""

from pathlib import Path

import pytest
import torch
from worlds import Quadratic, QuadraticData, mlp, train

from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer


def test_before_the_first_run() -> None:
    trainer = FederatedTrainer(accelerator="cpu", max_rounds=9)
    with pytest.raises(RuntimeError, match="There is no run: `fit` makes one"):
        _ = trainer.server
    assert (trainer.current_round, trainer.should_stop, trainer.max_epochs) == (0, False, 9)
    assert (trainer.is_global_zero, trainer.global_rank, trainer.world_size) == (True, 0, 1)
    assert trainer.device == torch.device("cpu")


def test_parts_of_the_run(tmp_path: Path) -> None:
    trainer = train([], tmp_path, mlp(), max_rounds=2)
    for name in ("server", "store", "ledger", "engine", "summary", "data", "layout", "num_clients"):
        assert getattr(trainer, name) is getattr(trainer.run, name), name
    assert trainer.current_round == trainer.current_epoch == trainer.global_step == 2
    assert trainer.logger is trainer.loggers[0]
    assert train([], tmp_path, logger=False, max_rounds=0).logger is None
    names = trainer.server_state_dict()
    assert torch.equal(names["backbone.head.bias"], trainer.layout.views(trainer.server.vector)["backbone.head.bias"])


def test_a_module_may_stop_the_run_and_read_the_round(tmp_path: Path) -> None:
    class Stopping(Quadratic):
        def on_train_epoch_start(self) -> None:
            seen.append((self.current_epoch, self.global_step))
            self.trainer.should_stop = self.current_epoch == 1

    seen: list[tuple[int, int]] = []
    trainer = train([], tmp_path, Stopping(), QuadraticData(), participation=FullParticipation(), max_rounds=5)
    assert seen == [(0, 0), (1, 1)]
    assert trainer.current_round == 2


def test_clients_are_evaluated_by_the_run(tmp_path: Path) -> None:
    trainer = train([], tmp_path, max_rounds=1)
    ids = torch.tensor([int(trainer.data.client_test_sizes.argmax())])
    params = trainer.server.vector[None]
    assert trainer.evaluate_clients(ids, params) == trainer.run.evaluate_clients(ids, params)
    assert 0 <= trainer.evaluate_clients(ids, params)[0]["val_acc"] <= 1
