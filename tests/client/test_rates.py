"""Learning rates over rounds, by the module's own schedulers."""

import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from worlds import Quadratic, QuadraticData, Rounds, mlp, train, train_quadratic

from lfl.callbacks import Scaffold
from lfl.checkpointing import Checkpointing
from lfl.client.optimizer import build_optimizer
from lfl.client.rates import LearningRates
from lfl.loggers.csv import read_rows
from lfl.storage.plain import to_plain


def test_learning_rate_schedule_over_rounds(tmp_path: Path) -> None:
    """Round 1 uses the undecayed rate; round t the rate times gamma^(t-1); everything divides by the round's own."""

    def module() -> Quadratic:
        model = Quadratic()

        def configure() -> object:
            built = torch.optim.SGD(model.parameters(), lr=0.1)
            return [built], [torch.optim.lr_scheduler.ExponentialLR(built, 0.5)]

        model.configure_optimizers = configure  # type: ignore[method-assign]
        return model

    data = QuadraticData()
    x = torch.zeros(12, dtype=torch.float64)
    for t in range(3):
        x = x + ((1 - (1 - 0.1 * 0.5**t * data.curvature) ** 6) * (data.centre - x)).mean(0)
    trainer, _ = train_quadratic([], tmp_path, max_rounds=3, module=module())
    torch.testing.assert_close(trainer.server.vector, x, rtol=0, atol=1e-13)
    decayed, data = train_quadratic([Scaffold()], tmp_path, max_rounds=2, module=module())
    own = decayed.store.gather("scaffold/control", torch.arange(5))
    assert (own - data.curvature * (decayed.server.vector - data.centre)).abs().max() < 0.5


@pytest.mark.parametrize("form", ["optimizer", "list", "lists", "dict", "dict-with-config", "tuple-of-dicts"])
def test_every_form_of_configure_optimizers(form: str) -> None:
    module = mlp()

    def configure():
        built = torch.optim.SGD(module.parameters(), lr=0.4)
        schedule = torch.optim.lr_scheduler.ExponentialLR(built, 0.5)
        return {
            "optimizer": built,
            "list": [built],
            "lists": ([built], [schedule]),
            "dict": {"optimizer": built, "lr_scheduler": schedule},
            "dict-with-config": {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "frequency": 2}},
            "tuple-of-dicts": ({"optimizer": built, "lr_scheduler": schedule},),
        }[form]

    module.configure_optimizers = configure
    rates = LearningRates(module)
    seen = []
    for number in range(1, 5):
        seen.append(rates.lr)
        rates.step(number, {})
    expected = {"optimizer": [0.4] * 4, "list": [0.4] * 4, "dict-with-config": [0.4, 0.4, 0.2, 0.2]}
    assert seen == expected.get(form, [0.4, 0.2, 0.1, 0.05])


def test_plateau_watches_a_metric() -> None:
    module = mlp()

    def configure():
        built = torch.optim.SGD(module.parameters(), lr=0.4)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(built, factor=0.5, patience=0)
        return {"optimizer": built, "lr_scheduler": schedule, "monitor": "val_loss"}

    module.configure_optimizers = configure
    rates = LearningRates(module)
    for number, loss in enumerate([1.0, 2.0, 0.5], 1):
        rates.step(number, {"val_loss": loss})
    assert rates.lr == 0.2
    with pytest.raises(ValueError, match="watches 'val_loss', which round 4 did not log; it logged: a, b"):
        rates.step(4, {"b": 1.0, "a": 0.0})


class NumpyWalk(lr_scheduler.LRScheduler):
    """A user's own, with every kind of state in its attributes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.table = np.linspace(0.1, 0.5, 7, dtype=np.float32)
        self.recent: deque[float] = deque(maxlen=2)
        self.seen: Counter[str] = Counter()
        self.total = np.zeros(())
        self.scale = np.cos  # not saved: the scheduler of a resumed run has it anew
        self.shape = math.sqrt
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        self.recent.append(float(self.table[self.last_epoch]))
        self.seen["asked"] += 1
        self.total = self.total + np.float32(0.01)
        return [np.float32(sum(self.recent) / len(self.recent)) * self.total for _ in self.optimizer.param_groups]


Schedule = Callable[[torch.optim.Optimizer], Any]
SCHEDULES: dict[str, Schedule] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.5 * (1 + np.cos(np.pi * e / 20))),
    "LambdaLR in float32": lambda o: lr_scheduler.LambdaLR(o, lambda e: np.float32(1) / (1 + e)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: np.float32(0.9)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, np.float64(0.3)),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [np.int64(1), 3, 3], 0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, np.float32(0.9)),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, total_iters=2), lr_scheduler.MultiStepLR(o, [1, 2], 0.3)], [2]
    ),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5, np.float64(0.01)),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.5, total_iters=3), lr_scheduler.MultiStepLR(o, [2, 3], 0.5)]
    ),
    "ReduceLROnPlateau": lambda o: {
        "scheduler": lr_scheduler.ReduceLROnPlateau(o, factor=np.float32(0.5), patience=0, threshold=0.5),
        "monitor": "train/loss",
    },
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 2, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=9, cycle_momentum=False),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 3),
    "NumpyWalk": NumpyWalk,
}


def with_schedule(schedule: str | Schedule) -> Any:
    module = mlp()

    def configure() -> Any:
        built = torch.optim.SGD(module.parameters(), lr=np.float32(0.1))
        return [built], [(SCHEDULES[schedule] if isinstance(schedule, str) else schedule)(built)]

    module.configure_optimizers = configure  # type: ignore[method-assign]
    return module


def test_every_scheduler_of_torch_is_tested() -> None:
    named = {
        n
        for n, kind in vars(lr_scheduler).items()
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)
    }
    assert named - {"LRScheduler", "_LRScheduler"} <= SCHEDULES.keys()


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_resumed_to_the_bit(name: str, tmp_path: Path) -> None:
    options = {"max_rounds": 6, "checkpoint": Checkpointing(every_n_rounds=3, keep_all=True)}
    unbroken = train([], tmp_path, with_schedule(name), **options)
    path = Path(unbroken.log_dir) / "checkpoints" / "round_000003.ckpt"
    resumed = train([], tmp_path, with_schedule(name), ckpt_path=str(path), **options)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    rows = [list(read_rows(Path(t.log_dir) / "metrics.csv")) for t in (unbroken, resumed)]
    assert rows[0] == rows[1]
    assert len({metrics["lr"] for _, metrics in rows[0]}) > 1
    states = [to_plain(t.run.rates.state_dict(), "it") for t in (unbroken, resumed)]
    assert str(states[0]) == str(states[1])


def test_rates_of_numpy_are_floats() -> None:
    rates = LearningRates(with_schedule("LambdaLR in float32"))
    for number in range(1, 4):
        found = [rates.lr, *(rates.current or []), *(rates.of_phase(0.5) or [])]
        assert [type(rate) for rate in found] == [float] * 3
        assert found[2] == pytest.approx(0.5 / number)
        rates.step(number, {})
    assert type(build_optimizer(with_schedule("LambdaLR"))[0].param_groups[0]["lr"]) is float


def test_a_scheduler_that_cannot_be_saved_is_named_before_the_first_round(tmp_path: Path) -> None:
    class Drawn(NumpyWalk):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.draws = np.random.default_rng(0)
            super().__init__(optimizer)

    module, rounds = with_schedule(Drawn), Rounds()
    with pytest.raises(TypeError, match=r"^`Drawn.state_dict\(\)`\['draws'\] is a numpy.random.*Generator, which a"):
        train([rounds], tmp_path, module, checkpoint=Checkpointing())
    assert rounds.kept == []


def test_a_factor_multiplies_the_rates_of_a_round() -> None:
    rates = LearningRates(with_schedule(partial(lr_scheduler.ExponentialLR, gamma=0.5)))
    first = rates.lr
    rates.step(1, {})
    assert rates.of_phase(None, 3.0) == pytest.approx([3 * 0.5 * first])
    assert rates.of_phase(0.25, 3.0) == pytest.approx([3 * 0.5 * 0.25])
    unscheduled = LearningRates(mlp())
    assert unscheduled.of_phase(None, 2.0) == [0.2]
    assert unscheduled.of_phase(None) is None


def test_momentum_that_is_scheduled_over_rounds_is_warned_of() -> None:
    module = mlp()

    def configure() -> Any:
        built = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        return [built], [lr_scheduler.OneCycleLR(built, 0.3, total_steps=9)]

    module.configure_optimizers = configure  # type: ignore[method-assign]
    rates = LearningRates(module)
    with pytest.warns(UserWarning, match="OneCycleLR changes momentum over rounds, which clients do not follow"):
        rates.step(1, {})
    rates.step(2, {})
