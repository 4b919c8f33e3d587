"""How many threads torch computes with: what the user said, else one or what a trial found, and put back at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from worlds import Bystander, mlp, ragged_data, train

from lfl.checkpointing import Checkpointing
from lfl.client.model import ClientModel
from lfl.client.step import StepTime
from lfl.client.work import LocalWork
from lfl.engine import training
from lfl.engine.select import EngineSettings, build_training
from lfl.engine.threads import Threads
from lfl.engine.timing import StepTimer
from lfl.round import Round

CPU = torch.device("cpu")


class Seen(Bystander):
    """Notes the number of threads in every round."""

    observes = True

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def on_round_start(self, round: Round) -> None:
        self.numbers.append(torch.get_num_threads())


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's torch has three, and no variable says anything."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def first(question: Any) -> Any:
    return question()


def started(number: int | None = None, device: torch.device = CPU, processes: int = 1) -> tuple[int, int]:
    """Threads of a run at its start, and the most that it may choose."""
    threads = Threads(number)
    with threads.kept():
        threads.start(device, processes, first)
        found = torch.get_num_threads(), threads.most
    assert torch.get_num_threads() == 3
    return found


def test_a_run_begins_with_one() -> None:
    assert started() == (1, 3)


def test_processes_of_a_machine_share_its_cores() -> None:
    assert started(processes=2) == (1, 1)


def test_what_the_user_says_is_done() -> None:
    assert started(2) == (2, 1)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_environment_says_is_done(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert started() == (3, 1)
    assert started(2) == (2, 1)


def test_variables_that_lightning_sets_later_are_not_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with threads.kept():
        threads.start(CPU, 1, first)
        assert threads.most == 3


def test_other_processes_follow_the_first() -> None:
    threads = Threads(None)
    with threads.kept():
        threads.start(CPU, 1, lambda _: (2, False, 8))
        assert torch.get_num_threads() == 2


def test_on_a_gpu_nothing_is_changed() -> None:
    assert started(device=torch.device("cuda")) == (3, 1)


def test_a_small_model_is_trained_with_one_thread(tmp_path: Path) -> None:
    seen = Seen()
    trainer = train([seen], tmp_path)
    assert seen.numbers == [1, 1, 1]
    assert trainer.run.engine_choice["threads"] == 1
    assert torch.get_num_threads() == 3


def test_the_trainer_s_argument(tmp_path: Path) -> None:
    seen = Seen()
    train([seen], tmp_path, num_threads=2)
    assert seen.numbers == [2, 2, 2]
    assert torch.get_num_threads() == 3


def test_threads_are_put_back_after_an_error(tmp_path: Path) -> None:
    class Broken(LightningModule):
        def training_step(self, batch: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(ValueError, match="parameter"):
        train([], tmp_path, Broken())
    assert torch.get_num_threads() == 3


def chosen(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], **settings: Any) -> int:
    """The number that is chosen where steps take so many seconds with one thread, and with three."""
    data = ragged_data()
    data.setup("fit")
    monkeypatch.setattr(StepTimer, "_times", lambda *_, **__: [seconds[torch.get_num_threads()]] * 5)
    torch.set_num_threads(1)
    build_training(
        EngineSettings("sequential", most_threads=3, **settings), ClientModel(mlp()), data, LocalWork(), [], seed=0
    )
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("one", "three", "number"),
    [(0.010, 0.006, 3), (0.010, 0.009, 1), (0.010, 0.050, 1), (0.0005, 0.0001, 1)],
    ids=["faster", "hardly faster", "slower", "too small to try"],
)
def test_more_threads_must_be_clearly_faster(
    one: float, three: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(monkeypatch, {1: one, 3: three}) == number


def test_a_resumed_run_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may change rounding; a machine that has fewer cores now uses those."""
    slow = {1: 0.01, 3: 0.1}
    assert chosen(monkeypatch, slow, resumed={"threads": 2}) == 2
    assert chosen(monkeypatch, slow, resumed={"threads": 8}) == 3
    assert chosen(monkeypatch, {1: 0.1, 3: 0.01}, resumed={"threads": 1}) == 1


def test_checkpoints_hold_the_number(tmp_path: Path) -> None:
    train([], tmp_path, num_threads=2, checkpoint=Checkpointing())
    seen = Seen()
    train([seen], tmp_path, ckpt_path="last", max_rounds=4, checkpoint=Checkpointing())
    assert seen.numbers == [2]


def test_threads_that_have_become_a_loss_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTimer, "_times", lambda *_, **__: [{1: 0.01, 3: 0.005}[torch.get_num_threads()]] * 5)
    options = {"max_rounds": 20}
    seen = Seen()
    train([seen], tmp_path, **options)
    assert seen.numbers == [3] * 20
    said: list[str] = []
    monkeypatch.setattr(training, "rank_zero_info", said.append)
    monkeypatch.setattr(training, "_SLOWER", 0.0)  # whatever a step takes is too long
    seen = Seen()
    trainer = train([seen], tmp_path, **options)
    assert seen.numbers == [3] + [1] * 19
    assert trainer.run.engine_choice["threads"] == 1
    assert said == [
        "From round 1 on, torch computes with one thread instead of 3: others have come to use the cores. "
        "`trainer.num_threads` sets a number for good."
    ]


def test_steps_that_are_not_recorded_yet_do_not_speak_against_threads(tmp_path: Path) -> None:
    """They take many times as long as their replays, which the trial has timed."""
    local = train([], tmp_path, num_threads=1, max_rounds=1).run.training
    for one, times, number in (
        (StepTime(0.01, True), [StepTime(1.0, False)] * 9 + [StepTime(0.01, True)], 3),
        (StepTime(0.01, True), [StepTime(1.0, False)] * 9, 3),
        (StepTime(0.01, True), [StepTime(0.04, True)] * 9, 1),
        (StepTime(0.01, False), [StepTime(0.04, False)] * 9 + [StepTime(0.001, True)] * 90, 1),
    ):
        torch.set_num_threads(3)
        local._one_thread = one
        local._look_at_threads(times)
        assert torch.get_num_threads() == number
