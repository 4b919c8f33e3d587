"""A run that is resumed equals the run that went through: weights, state of every kind, and the metrics file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import METHODS, dealt, train_method
from worlds import batch_norm, even_data, mlp, ragged_data, train

from lfl.callbacks import SSF, ClientEvaluation, Diagnostics, Proximal, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.models import Classifier
from lfl.participation import UniformParticipation
from lfl.storage.checkpoint_file import CheckpointError
from lfl.subspace import LayerwiseSubspace
from lfl.trainer import FederatedTrainer


def scheduled() -> Classifier:
    """Dropout, and a learning rate that changes over rounds."""
    module = mlp(dropout=0.3)

    def configure() -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    module.configure_optimizers = configure  # type: ignore[method-assign]
    return module


def sgd_with_momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.7, momentum=0.5)


OPTIONS: dict[str, Any] = {
    "precision": "32-true",
    "max_rounds": 5,
    "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
    "check_val_every_n_rounds": 3,
    "server_optimizer": sgd_with_momentum,
    "cohort_size": 3,
}


def files(trainer: FederatedTrainer) -> bytes:
    return (Path(trainer.log_dir) / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("method", "engine", "kind"),
    dealt(METHODS, *((engine, kind) for engine in ("sequential", "vectorized") for kind in ("memmap", "host"))),
)
def test_resumed_equals_unbroken(method: str, engine: str, kind: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "engine": engine, "client_state": kind}
    unbroken = train_method(method, tmp_path / "unbroken", scheduled(), **options)
    checkpoint = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train_method(method, tmp_path / "resumed", scheduled(), ckpt_path=str(checkpoint), **options)
    assert resumed.log_dir != unbroken.log_dir
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    assert files(resumed) == files(unbroken)
    assert resumed.ledger.metrics() == unbroken.ledger.metrics()
    last = [torch.load(Path(t.log_dir) / "checkpoints" / "last.ckpt", weights_only=True) for t in (resumed, unbroken)]
    for key in ("server", "ledger", "outbox", "callbacks", "learning_rates", "progress"):
        assert str(last[0][key]) == str(last[1][key]), key
    for name in unbroken.store.slots:
        everyone = torch.arange(8)
        rows = [t.store.gather(name, everyone) for t in (resumed, unbroken)]
        assert torch.equal(rows[0], rows[1]), name


def test_more_rounds_can_be_asked_for(tmp_path: Path) -> None:
    short = train([Scaffold()], tmp_path, mlp(), **{**OPTIONS, "max_rounds": 3})
    longer = train([Scaffold()], tmp_path, mlp(), ckpt_path="last", **{**OPTIONS, "max_rounds": 5})
    straight = train([Scaffold()], tmp_path / "straight", mlp(), **OPTIONS)
    assert short.current_round == 3
    assert torch.equal(longer.server.vector, straight.server.vector)


def test_auto_is_not_tried_again(tmp_path: Path) -> None:
    """The choice of the engine changes rounding: a resumed run repeats it."""
    first = train([], tmp_path, mlp(), **{**OPTIONS, "engine": "vectorized", "cohort_size": 4})
    resumed = train(
        [], tmp_path, mlp(), ckpt_path="last", **{**OPTIONS, "engine": "auto", "cohort_size": None, "max_rounds": 6}
    )
    assert (resumed.engine.name, resumed.engine.cohort_size) == (first.engine.name, 4)


@pytest.mark.filterwarnings("ignore:.*sequential engine")
def test_auto_goes_on_where_steps_cannot_be_recorded(tmp_path: Path) -> None:
    """Named, the sequential engine refuses to record a module with BatchNorm; chosen by ``auto``, it does without."""
    options = {**OPTIONS, "engine": "auto", "trace_steps": True, "participation": UniformParticipation(2)}
    data = even_data()
    train([], tmp_path, batch_norm(), data, **{**options, "max_rounds": 2})
    resumed = train([], tmp_path, batch_norm(), data, ckpt_path="last", **{**options, "max_rounds": 3})
    assert (resumed.current_round, resumed.engine.name) == (3, "sequential")


def test_observers_may_come_change_and_go(tmp_path: Path) -> None:
    """What only looks is no part of the settings; it keeps its state where it is the same."""
    options = {**OPTIONS, "check_val_every_n_rounds": 1}
    straight = train([Scaffold()], tmp_path / "straight", mlp(), **options)
    first = [Diagnostics(trajectory=3), Scaffold()]
    train(first, tmp_path, mlp(), **{**options, "max_rounds": 2})
    same = [Scaffold(), Diagnostics(trajectory=3), ClientEvaluation(every_n_rounds=1)]
    train(same, tmp_path, mlp(), ckpt_path="last", **{**options, "max_rounds": 3})
    assert bool((same[1].state_dict()["steps"].abs().sum(dim=1) > 0).all())  # those of rounds 1 and 2, and of 3
    changed = [Scaffold(), Diagnostics(trajectory=4)]
    last = train(changed, tmp_path, mlp(), ckpt_path="last", **options)
    assert int((changed[1].state_dict()["steps"].abs().sum(dim=1) > 0).sum()) == options["max_rounds"] - 3
    assert torch.equal(last.server.vector, straight.server.vector)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"callbacks": [Scaffold("I")]}, r"callbacks\[0\].option: 'II' then, 'I' now"),
        ({"callbacks": [Scaffold(), Proximal(0.1)]}, "callbacks: "),
        ({"callbacks": [SSF(LayerwiseSubspace(0.5))]}, r"callbacks\[0\]: Scaffold then, SSF now"),
        ({"seed": 5}, "seed: 0 then, 5 now"),
        ({"local_epochs": 2}, r"local_work.phases\[0\].epochs: None then, 2 now"),
        ({"data": ragged_data(batch_size=7)}, "data.batch_size: 5 then, 7 now"),
        ({"data": ragged_data(num_clients=9)}, "data.num_clients: 8 then, 9 now"),
        ({"module": mlp(hidden=13)}, "model.parameters"),
        ({"module": Classifier(mlp().backbone, lr=0.2)}, r"optimizer.*lr: 0.1 then, 0.2 now"),
    ],
)
def test_settings_that_matter_may_not_change(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    train([Scaffold()], tmp_path, mlp(), **OPTIONS)
    settings = {"callbacks": [Scaffold()], "module": mlp(), **OPTIONS, **change}
    with pytest.raises(CheckpointError, match=message):
        train(folder=tmp_path, ckpt_path="last", **settings)
