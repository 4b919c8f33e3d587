"""Choosing an engine: what cannot be vectorized or recorded is refused with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import ONE_ROUND, Bystander, Strange, batch_norm, equal_data, even_data, mlp, ragged_data, train

from lfl.callbacks import FederatedCallback, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.client.model import ClientModel
from lfl.client.work import LocalWork
from lfl.engine import select
from lfl.engine.graph.traced import TracedStep
from lfl.engine.select import EngineSettings, automatic_cohort_size, build_training
from lfl.models import CifarResNet, Classifier
from lfl.participation import FullParticipation
from lfl.round import Round


def test_vectorized_refuses_batch_norm_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Classifier: .*running_mean"):
        train([], tmp_path, batch_norm(), even_data(), engine="vectorized", **ONE_ROUND)


def test_a_counter_in_the_step_is_reason_enough_not_to_vectorize(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the buffer 'steps' in place"):
        train([], tmp_path, Strange(), ragged_data(), engine="vectorized")


def test_a_module_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot record the step of Classifier: it changes the buffer 'backbone"):
        train([], tmp_path, Classifier(CifarResNet(8, in_channels=1)), equal_data(), trace_steps=True)


class Large(LightningModule):
    """2^20 numbers in float64: 8 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2**20, dtype=torch.float64))


def test_a_cohort_has_parameters_of_256_mib_and_128_clients_at_most() -> None:
    data = ragged_data()
    assert automatic_cohort_size(ClientModel(Large()), data, seed=0) == 32
    assert automatic_cohort_size(ClientModel(mlp()), data, seed=0) == 128


def test_a_resumed_run_goes_on_with_the_engine_it_had(tmp_path: Path) -> None:
    data = ragged_data()
    data.setup("fit")
    for name in ("sequential", "vectorized"):
        settings = EngineSettings("auto", resumed={"name": name})
        assert build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0).engine.name == name


def test_a_cohort_is_not_larger_than_a_round() -> None:
    data = ragged_data()
    data.setup("fit")
    for settings, size in (
        (EngineSettings("vectorized", clients_per_round=5), 5),
        (EngineSettings("vectorized", cohort_size=9, clients_per_round=5), 9),
        (EngineSettings("sequential", cohort_size=9), 1),
    ):
        assert build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0).engine.cohort_size == size


class Steps(Bystander):
    """Counts the recordings that there are after every round: of steps, and of steps with their descent."""

    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []

    def on_round_end(self, round: Round) -> None:
        (step,) = self.run.engine.steps.of_phases
        self.counts.append((len(step._recorded), len(step._descents)) if isinstance(step, TracedStep) else (-1, -1))


def counted(folder: Path, callbacks: list[FederatedCallback], **options: Any) -> list[tuple[int, int]]:
    """15 examples of 5 clients in batches of 5: 15 steps a round one at a time, 3 together."""
    steps = Steps()
    train([*callbacks, steps], folder, mlp(), equal_data(), **options)
    return steps.counts


@pytest.mark.parametrize(("engine", "patience"), [("sequential", 40), ("vectorized", 8)])
def test_steps_are_recorded_once_there_have_been_many(
    engine: str, patience: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_PATIENCE", dict.fromkeys(("sequential", "vectorized"), patience))
    assert counted(tmp_path, [], engine=engine, max_rounds=4) == [(0, 0), (0, 0), (0, 1), (0, 1)]
    # What looks at gradients has no descents.
    assert counted(tmp_path, [Scaffold()], engine=engine, max_rounds=4) == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert counted(tmp_path, [], engine=engine, trace_steps=True, max_rounds=2) == [(0, 1), (0, 1)]
    assert counted(tmp_path, [], engine=engine, trace_steps=False, max_rounds=2) == [(-1, -1)] * 2


def test_a_short_run_records_nothing(tmp_path: Path) -> None:
    assert counted(tmp_path, [], max_rounds=2) == [(0, 0)] * 2


def test_rare_shapes_of_batches_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last batches of ragged clients, and of full ones, only the latter come often."""
    monkeypatch.setattr(select, "_PATIENCE", dict.fromkeys(("sequential", "vectorized"), 30))
    steps, last = Steps(), 4
    trainer = train([steps], tmp_path, mlp(), ragged_data(), max_rounds=last, participation=FullParticipation())
    sizes = trainer.data.client_sizes
    assert len(set((sizes % 5).tolist())) > 3
    assert int((sizes // 5).sum()) * (last - 1) > 30
    assert steps.counts[-1] == (0, 1)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", [list, lambda: [Scaffold()]])
def test_recording_by_default_changes_rounding_at_most(
    method: Callable[[], list[FederatedCallback]], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_PATIENCE", dict.fromkeys(("sequential", "vectorized"), 5))
    options = {"engine": engine, "local_epochs": 2}
    plain, default = (
        train(method(), tmp_path, mlp(dropout=0.3), ragged_data(), trace_steps=trace, **options)
        for trace in (False, "auto")
    )
    assert default.engine.steps.are_recorded
    if method is list:
        torch.testing.assert_close(default.server.vector, plain.server.vector, rtol=0, atol=1e-12)
    else:
        assert torch.equal(default.server.vector, plain.server.vector)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_recording_by_default_is_resumed_to_the_bit(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which steps include their descent follows from the round and the batch, not from what has been counted."""
    monkeypatch.setattr(select, "_PATIENCE", dict.fromkeys(("sequential", "vectorized"), 20))
    options = {"engine": engine, "precision": "32-true", "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True)}
    straight = train([], tmp_path / "straight", mlp(), max_rounds=5, **options)
    short = train([], tmp_path / "short", mlp(), max_rounds=2, **options)
    resumed = train([], tmp_path / "short", mlp(), ckpt_path="last", max_rounds=5, **options)
    assert short.current_round == 2
    assert torch.equal(resumed.server.vector, straight.server.vector)


def test_a_resumed_run_records_nothing_where_it_did_not() -> None:
    data = ragged_data()
    data.setup("fit")
    for saved in (False, True):
        settings = EngineSettings("sequential", resumed={"recording": saved})
        training = build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0)
        assert training.engine.steps.are_recorded is saved
        assert training.choice["recording"] is saved


class Counting(LightningModule):
    """Reads the numbers of its batch in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layer(x.flatten(1)), y) * len(torch.unique(y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "data", "reason"),
    [
        (lambda: Classifier(CifarResNet(8, in_channels=1)), equal_data, "it changes the buffer 'backbone"),
        (Counting, equal_data, "what it does depends on the values of tensors, by `_unique2`"),
    ],
)
def test_what_is_not_recorded_by_default_is_said_once_without_a_warning(
    make: Callable[[], LightningModule],
    data: Callable[[], Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(select, "rank_zero_info", said.append)
    monkeypatch.setattr(select, "_SHORT", 1)
    trainer = train([], tmp_path, make(), data(), max_rounds=1)
    assert not trainer.engine.steps.are_recorded
    (line,) = said
    assert f"is not recorded: {reason}" in line
    monkeypatch.setattr(select, "_SHORT", 10**6)  # a short run loses nothing
    train([], tmp_path, make(), data(), max_rounds=1)
    assert said == [line]


@pytest.mark.parametrize(("join", "is_said"), [(1e3, True), (0.0, False)])
def test_processes_that_save_less_than_their_sums_cost_are_spoken_of(
    join: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, said = ragged_data(), []
    data.setup("fit")
    monkeypatch.setattr(select, "rank_zero_info", said.append)
    settings = EngineSettings("sequential", processes=2, join=lambda: join)
    build_training(settings, ClientModel(mlp()), data, LocalWork(), [], seed=0)
    assert [("2 processes are no faster than one here" in line) for line in said] == [True] * is_said
