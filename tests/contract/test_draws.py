"""What user code draws has an address: two fits are equal, resumed equals unbroken, workers change nothing."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.brought import Net
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from worlds import ragged_data, train

from lfl.callbacks import SharpnessAware
from lfl.checkpointing import Checkpointing
from lfl.data import DatasetSource, FederatedDataModule
from lfl.trainer import FederatedTrainer


class MixUp(Net):
    """Mixes neighbours by a share that it draws, from where ``draw`` says."""

    draw: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.shifts: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        share = float(type(self).draw(self))
        x, y = batch
        logits = self(share * x + (1 - share) * x.flip(0))
        return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y.flip(0))


class Shifting(Net):
    """Draws in a hook, and in validation."""

    def on_train_epoch_start(self) -> None:
        self.shift = float(np.random.rand())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0] + self.shift), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("noisy", self(batch[0] + np.random.rand()).mean())


DRAWS: dict[str, type[Net]] = {
    "numpy": type("Numpy", (MixUp,), {"draw": lambda self: np.random.beta(1.0, 1.0)}),
    "python": type("Python", (MixUp,), {"draw": lambda self: random.random()}),
    "torch in place": type("Torch", (MixUp,), {"draw": lambda self: torch.empty(()).uniform_()}),
    "its own generator": type("Own", (MixUp,), {"draw": lambda self: self.rng.random()}),
    "sometimes": type("Some", (MixUp,), {"draw": lambda self: random.random() if np.random.rand() < 0.2 else 1.0}),
    "in a hook": Shifting,
}


class Noisy(Dataset[Any]):
    """Adds noise of three generators to its items."""

    def __init__(self) -> None:
        self.source = DatasetSource(*_images(), num_classes=4).load()[0]
        self.targets = self.source.targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.source.inputs[index]
        return x + torch.rand(()) + float(np.random.rand()) + random.random(), int(self.targets[index])


def _images() -> tuple[Any, Any]:
    from worlds import images

    return images(), images(40, seed=1)


def noisy_data(num_workers: int = 0) -> FederatedDataModule:
    source = DatasetSource(Noisy(), Noisy(), num_classes=4, in_memory=False)
    return ragged_data(source=source, num_workers=num_workers)


def fitted(kind: type[Net], folder: Path, rounds: int = 4, ckpt_path: str | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    data = options.pop("data", None) or ragged_data()
    saving = Checkpointing(every_n_rounds=2, keep_all=True)
    settings = {"max_rounds": rounds, "checkpoint": saving, "check_val_every_n_rounds": 1, **options}
    return train(settings.pop("callbacks", []), folder, kind(), data, ckpt_path, **settings)


def after_round_2(trainer: FederatedTrainer) -> str:
    return str(Path(trainer.log_dir) / "checkpoints" / "round_000002.ckpt")


def seeded_otherwise(seed: int) -> None:
    np.random.seed(seed)
    random.seed(seed)


@pytest.mark.parametrize("callbacks", [list, lambda: [SharpnessAware(0.05)]], ids=["fedavg", "sam"])
@pytest.mark.parametrize("kind", DRAWS)
def test_fits_are_equal_and_resumed_equals_unbroken(kind: str, callbacks: Any, tmp_path: Path) -> None:
    runs = []
    for number in range(2):
        seeded_otherwise(number)  # what was drawn before does not matter
        runs.append(fitted(DRAWS[kind], tmp_path / str(number), callbacks=callbacks()))
        drawn = np.random.rand(), random.random()
        seeded_otherwise(number)
        assert drawn == (np.random.rand(), random.random())  # nor does the run matter to what comes after
    resumed = fitted(DRAWS[kind], tmp_path / "resumed", ckpt_path=after_round_2(runs[0]), callbacks=callbacks())
    for run in (runs[1], resumed):
        assert torch.equal(run.server.vector, runs[0].server.vector)
        assert metrics(run) == metrics(runs[0])


def metrics(trainer: FederatedTrainer) -> dict[str, Any]:
    records = trainer.summary.state_dict()["records"]
    return {name: record["last"] for name, record in records.items() if not name.startswith("time/")}


def test_clients_and_rounds_draw_different_numbers(tmp_path: Path) -> None:
    seen: list[float] = []

    class Seen(MixUp):
        draw = staticmethod(lambda self: seen.append(np.random.rand()) or seen[-1])

    fitted(Seen, tmp_path, rounds=2)
    # Steps of the same batch are drawn from again only by the look before the run.
    drawn = seen[4:] if len(seen) > 4 else seen
    assert len(set(drawn)) == len(drawn) > 20


@pytest.mark.parametrize("kind", ["numpy", "python", "torch in place", "its own generator"])
def test_clients_that_are_trained_together_do_not_share_a_draw(kind: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"one client at a time .*draws from|does not run under vmap"):
        assert fitted(DRAWS[kind], tmp_path, rounds=1, engine="auto").engine.name == "sequential"
    with pytest.raises(ValueError, match=r"draws from|does not run under vmap"):
        fitted(DRAWS[kind], tmp_path, rounds=1, engine="vectorized")


def test_a_data_set_that_draws_gives_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    for engine in ("sequential", "vectorized"):
        runs = [
            fitted(Net, tmp_path / f"{engine}{workers}", 2 + resumed, engine=engine, data=noisy_data(workers))
            for workers, resumed in product((0, 2), (0,))
        ]
        assert torch.equal(runs[0].server.vector, runs[1].server.vector)
        assert metrics(runs[0]) == metrics(runs[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_draws_goes_on_as_it_would_have(workers: int, tmp_path: Path) -> None:
    few = {"local_steps": 1, "rounds": 3}
    unbroken = fitted(Net, tmp_path / "unbroken", data=noisy_data(workers), **few)
    path = after_round_2(unbroken)
    resumed = fitted(Net, tmp_path / "resumed", ckpt_path=path, data=noisy_data(workers), **few)
    assert torch.equal(resumed.server.vector, unbroken.server.vector)


def in_two_parts(optimizer: Any) -> Any:
    schedulers = torch.optim.lr_scheduler
    parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=2), schedulers.MultiStepLR(optimizer, [1, 2], 0.5)]
    return schedulers.SequentialLR(optimizer, parts, milestones=[2])


def by_numpy(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5 * (1 + np.cos(np.pi * e / 20)))


@pytest.mark.parametrize("schedule", [in_two_parts, by_numpy])
def test_schedules_go_on_as_they_would_have(schedule: Any, tmp_path: Path) -> None:
    class Scheduled(Net):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [schedule(optimizer)]

    unbroken = fitted(Scheduled, tmp_path / "unbroken")
    resumed = fitted(Scheduled, tmp_path / "resumed", ckpt_path=after_round_2(unbroken))
    assert torch.equal(resumed.server.vector, unbroken.server.vector)
    assert metrics(resumed) == metrics(unbroken)
