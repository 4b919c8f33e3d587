"""Draws of data sets: addressed, the same in any process, and without a trace in the process's own generators."""

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision.transforms import v2

from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.data.columns import DataError
from lfl.data.items import ItemReader
from lfl.data.stores import DatasetStore
from lfl.data.workers import Workers
from lfl.generators import HostGenerators
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer

MODULE_LEVEL = np.random.default_rng(1)


class Drawing(Dataset[Any]):
    """80 items (four numbers that ``draw`` returns, i modulo 2)."""

    def __init__(self, draw: Callable[[Any], Any] = lambda _: torch.rand(4), **own: Any) -> None:
        self.draw, self.targets = draw, [0, 1] * 40
        self.__dict__.update(own)

    def __len__(self) -> int:
        return 80

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.draw(self), self.targets[i]


def lazily(data: Any) -> Any:
    if not hasattr(data, "late"):
        data.late = np.random.default_rng()  # from the operating system: another one in each process
    return data.late.random(4, dtype=np.float32)


def closure() -> Callable[[Any], Any]:
    hidden = random.Random(3)
    return lambda _: torch.tensor([hidden.random() for _ in range(4)])


def transformed(transform: Any) -> Drawing:
    return Drawing(lambda data: data.transform(torch.arange(4.0).view(1, 1, 4)).flatten(), transform=transform)


KINDS: dict[str, Callable[[], Dataset[Any]]] = {
    "torch": Drawing,
    "numpy": lambda: Drawing(lambda _: np.random.rand(4).astype(np.float32)),
    "python": lambda: Drawing(lambda _: torch.tensor([random.random() for _ in range(4)])),
    "own torch": lambda: Drawing(lambda d: torch.rand(4, generator=d.rng), rng=torch.Generator()),
    "own numpy": lambda: Drawing(lambda d: d.rngs[0].random(4), rngs=[np.random.default_rng(0)]),
    "own old numpy": lambda: Drawing(lambda d: d.rng.rand(4), rng=np.random.RandomState(0)),
    "own python": lambda: Drawing(lambda d: torch.tensor([d.rng.random() for _ in range(4)]), rng=random.Random(0)),
    "made late": lambda: Drawing(lazily),
    "in a closure": lambda: Drawing(closure()),
    "of the module": lambda: Drawing(lambda _: MODULE_LEVEL.random(4)),
    "in a wrapped set": lambda: Subset(ConcatDataset([KINDS["own numpy"](), KINDS["own python"]()]), range(0, 160, 2)),
    "in a transform": lambda: transformed(
        SimpleNamespace(steps=[partial(noisy, np.random.default_rng(5))]).steps[0]  # as in a composed one
    ),
    "torchvision": lambda: transformed(v2.Compose([v2.RandomApply([v2.Pad(0)]), v2.GaussianNoise(clip=False)])),
}


def noisy(rng: np.random.Generator, x: Tensor) -> Tensor:
    return x + torch.from_numpy(rng.random(4, dtype=np.float32))


PLAN = [
    (torch.tensor([[4, 0], [7, 9]]), torch.tensor([[11, 12], [21, 22]])),
    (torch.tensor([[4]]), torch.tensor([[13]])),
]


def batches(data: Dataset[Any], num_workers: int) -> list[Tensor]:
    return [
        x for x, _ in DatasetStore(ItemReader(data), [], Workers(num_workers) if num_workers else None).batches(PLAN)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_belong_to_the_key(kind: str) -> None:
    """Other keys give other draws; who reads, what was read before, and what other generators did are nothing to it."""
    data = KINDS[kind]()
    first = batches(data, 0)
    numbers = torch.cat([x.reshape(-1, 4) for x in first])
    assert len(numbers.unique(dim=0)) == 5
    data[3]
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    for again in (batches(data, 0), batches(KINDS[kind](), 0)):
        assert all(map(torch.equal, first, again))
    alone = DatasetStore(ItemReader(data), []).gather(torch.tensor([7]), torch.tensor([21]))[0]
    assert torch.equal(alone[0], first[0][1, 0])


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", ["torch", "own numpy", "made late", "in a closure"])
def test_workers_draw_the_same(kind: str, num_workers: int) -> None:
    assert all(map(torch.equal, batches(KINDS[kind](), 0), batches(KINDS[kind](), num_workers)))


@pytest.mark.parametrize("kind", KINDS)
def test_reading_leaves_no_trace(kind: str) -> None:
    data = KINDS[kind]()
    reader = ItemReader(data)
    reader[0]
    generators = HostGenerators(data, data.__dict__)
    state = generators.state()
    batches(data, 0)
    reader.batch([(3, None)])
    assert generators.moved_since(state) == []


def test_without_a_key_the_position_is_the_address() -> None:
    """Evaluations see the same examples each time, in any order and batches."""
    store = DatasetStore(ItemReader(Drawing(), seed=1), [])
    whole = torch.cat([x for x, _ in store.in_order(32)])
    assert torch.equal(torch.cat([x for x, _ in store.in_order(7)]), whole)
    assert torch.equal(store.gather(torch.tensor([5, 2]), None)[0], whole[[5, 2]])
    assert len(whole.unique(dim=0)) == 80
    other = DatasetStore(ItemReader(Drawing(), seed=2), [])
    assert not torch.equal(other.gather(torch.tensor([5]), None)[0], whole[[5]])


def test_draws_that_no_seed_reaches_are_told() -> None:
    data = Drawing(lambda _: np.random.default_rng().random(4))
    with pytest.warns(
        UserWarning, match=r"Two readings of item 0 of mine differ: `__getitem__` draws from a generator"
    ):
        ItemReader(data, "mine").warn_of_other_draws()
    ItemReader(Drawing(lambda _: torch.full((4,), torch.nan)), "mine").warn_of_other_draws()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_item_of_another_shape_is_named(num_workers: int) -> None:
    class Growing(Drawing):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            return torch.zeros(2 if i < 7 else 3), 0

    with pytest.raises(DataError, match=r"^Item 7 of The data set has a part of shape \[3\], item 4 of \[2\]: .*\.$"):
        batches(Growing(), num_workers)


def test_errors_of_a_data_set_stay_its_own() -> None:
    def fail(_: Any) -> Any:
        raise KeyError("no such file")

    reader = ItemReader(Drawing(fail), "mine")
    with pytest.raises(KeyError, match="no such file"):
        _ = reader.generators
    reader.dataset.draw = lambda _: torch.zeros(4)
    reader[0]
    reader.dataset.draw = fail
    with pytest.raises(KeyError, match="no such file") as raised:
        reader[3]
    assert raised.value.__notes__ == ["This is item 3 of mine, which has 80."]


class Net(LightningModule):
    """Keeps what it saw, and draws itself, from all global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
        self.seen: list[tuple[float, ...]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(tuple(batch[0].flatten().tolist()))
        return torch.nn.functional.cross_entropy(self.net(batch[0].float()) + torch.rand(2), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(root: Any, kind: str, num_workers: int = 0, max_rounds: int = 3, **options: Any) -> Net:
    torch.manual_seed(0)
    net = Net()
    ckpt_path = options.pop("ckpt_path", None)
    source = DatasetSource(KINDS[kind](), KINDS[kind](), num_classes=2, in_memory=options.pop("in_memory", False))
    data = FederatedDataModule(source, IIDPartitioner(), num_clients=5, batch_size=8, num_workers=num_workers)
    trainer = FederatedTrainer(
        max_rounds=max_rounds,
        engine="sequential",
        participation=FullParticipation(),
        local_epochs=2,
        default_root_dir=str(root),
        enable_progress_bar=False,
        logger=False,
        **options,
    )
    trainer.fit(net, data, ckpt_path=ckpt_path)
    # The engine may have looked at a step beforehand. A client has two batches in each of two epochs.
    rounds = max_rounds - (ckpt_path is not None)
    net.seen = net.seen[-rounds * 20 :]
    return net


@pytest.mark.parametrize("kind", ["torch", "numpy", "own numpy"])
def test_clients_rounds_and_epochs_draw_apart_and_runs_repeat(tmp_path: Any, kind: str) -> None:
    """3 rounds of 5 clients with 2 epochs of 2 batches; the run that stopped after a round goes on as if it had not."""
    first = fit(tmp_path / "a", kind)
    assert len(set(first.seen)) == 60
    np.random.seed(5)
    again = fit(tmp_path / "b", kind, num_workers=1)
    assert again.seen == first.seen
    assert torch.equal(again.net.weight, first.net.weight)
    fit(tmp_path / "c", kind, max_rounds=1)
    resumed = fit(tmp_path / "c", kind, ckpt_path="last")
    assert resumed.seen == first.seen[20:]
    assert torch.equal(resumed.net.weight, first.net.weight)


@pytest.mark.filterwarnings("ignore:Items of .* are kept in memory")
def test_data_read_into_memory_repeats_too(tmp_path: Any) -> None:
    one, other = (fit(tmp_path / name, "numpy", max_rounds=1, in_memory=True) for name in "ab")
    assert one.seen == other.seen
    assert len(set(one.seen)) == 20
